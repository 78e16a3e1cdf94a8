package launcher

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Host ids from firstID on, rangeCount ranges of spec.IDs each, belong to
// sandboxes. They lie above what systemd gives to its containers and below
// what it keeps for itself, in a stretch it calls unused (UIDS-GIDS.md,
// "Summary"). No file on disk ever carries one.
const (
	firstID    = 0x70000000
	rangeCount = 4094
)

// errNoIDs says that as many sandboxes live as there are ranges.
var errNoIDs = fmt.Errorf("all %d ranges of user ids are taken; remove sandboxes, or run prune", rangeCount)

// idRanges hands out ranges of host ids: a file per range, whose name is the
// range's number and whose text is the owner's id. A range outlives the
// process that took it, as the sandbox may.
type idRanges struct{ dir string }

// claim takes a free range for the sandbox and returns its first host id. The
// search starts at a place that depends on the sandbox, so that it is short
// and so that runtimes with different roots rarely take the same.
func (r idRanges) claim(id string) (uint32, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return 0, err
	}
	draft := r.draft(id)
	defer os.Remove(draft)
	if err := os.WriteFile(draft, []byte(id), 0o600); err != nil {
		return 0, err
	}
	h := fnv.New32a()
	h.Write([]byte(r.dir + "\x00" + id))
	start := h.Sum32() % rangeCount
	for i := range uint32(rangeCount) {
		n := (start + i) % rangeCount
		// link(2) fails where the name exists and shows the file whole.
		switch err := os.Link(draft, r.file(n)); {
		case err == nil:
			return firstID + n*spec.IDs, nil
		case !errors.Is(err, fs.ErrExist):
			return 0, err
		}
	}
	return 0, errNoIDs
}

// release gives back the range that begins at base. It may be free already.
func (r idRanges) release(base uint32) error {
	err := os.Remove(r.file((base - firstID) / spec.IDs))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// releaseAll gives back every range that is the sandbox's, and what a claim
// that was killed left.
func (r idRanges) releaseAll(id string) error {
	owners, err := r.owners()
	errs := []error{err}
	for _, o := range owners {
		if o.id == id && !o.claiming {
			errs = append(errs, r.release(o.base))
		}
	}
	if err := os.Remove(r.draft(id)); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// releaseUnowned gives back the ranges whose files are damaged, which name no
// sandbox, unless one of them may belong to one of the living: to one that has
// no other.
func (r idRanges) releaseUnowned(living []string) error {
	owners, err := r.owners()
	if err != nil {
		return err
	}
	for _, id := range living {
		if !slices.ContainsFunc(owners, func(o owner) bool { return o.id == id && !o.claiming }) {
			return nil
		}
	}
	var errs []error
	for _, o := range owners {
		if !o.claiming && !isID(o.id) {
			errs = append(errs, r.release(o.base))
		}
	}
	return errors.Join(errs...)
}

// An owner has a range, from the host id base on, or is claiming one.
type owner struct {
	id       string // what the file says, which may be damaged
	base     uint32
	claiming bool
}

// owners returns the sandboxes that have a range or are about to.
func (r idRanges) owners() ([]owner, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var owners []owner
	for _, e := range entries {
		if id, draft := strings.CutPrefix(e.Name(), "."); draft {
			owners = append(owners, owner{id: id, claiming: true})
			continue
		}
		n, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil || n >= rangeCount {
			return nil, fmt.Errorf("%s is not the number of a range", filepath.Join(r.dir, e.Name()))
		}
		id, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		owners = append(owners, owner{id: string(id), base: firstID + uint32(n)*spec.IDs})
	}
	return owners, nil
}

// draft is where a claim is written before it is made.
func (r idRanges) draft(id string) string { return filepath.Join(r.dir, "."+id) }

func (r idRanges) file(n uint32) string {
	return filepath.Join(r.dir, strconv.FormatUint(uint64(n), 10))
}
