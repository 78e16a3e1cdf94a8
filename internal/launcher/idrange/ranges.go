// Package idrange gives each sandbox of the host a range of host user ids of its own.
package idrange

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The host ids from FirstID on belong to sandboxes: rangeCount ranges of spec.IDs ids each. They
// lie above the ids that systemd gives to its containers and below the ids that systemd keeps
// for itself. systemd calls this stretch unused (UIDS-GIDS.md, "Summary"). No file on disk is
// owned by one of these ids.
const (
	FirstID    = 0x70000000
	rangeCount = 4094
)

// ErrNone says that each range belongs to a sandbox.
var ErrNone = fmt.Errorf("all %d ranges of user ids are taken; remove sandboxes, or run prune", rangeCount)

// Ranges gives ranges of host ids to sandboxes. No two sandboxes of the host have the same range.
// Launchers with different state roots share one data directory for that. The data directory is
// durable. So no range is forgotten when somebody empties a state root in /run.
//
// A taken range is a symbolic link <data>/ids/<boot>/<number>. The target of the link is the
// owner. The kernel makes a link whole or not at all, and only for the first of several callers.
// No process outlives a boot, so a link of an earlier boot is no claim.
type Ranges struct {
	Data string // the data directory
	Root string // the state root of the claims
}

// A rangeOwner is the content of a link.
type rangeOwner struct {
	Root    string `json:"root"`
	Sandbox string `json:"sandbox"`
}

// Claim takes a free range for the sandbox and returns its first host id. The search starts at a
// place that depends on the sandbox. So most searches are short.
func (r Ranges) Claim(id string) (uint32, error) {
	dir, err := r.open()
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	owner := r.claimOf(id)
	start := startOfSearch(owner)
	for i := range uint32(rangeCount) {
		n := (start + i) % rangeCount
		if isInhabited(baseOf(n)) {
			continue
		}
		err := unix.Symlinkat(owner, int(dir.Fd()), rangeName(n))
		if err == nil {
			return baseOf(n), nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return 0, fmt.Errorf("%s: %w", filepath.Join(dir.Name(), rangeName(n)), err)
		}
	}
	return 0, ErrNone
}

// Free is the number of ranges that nobody has taken.
func (r Ranges) Free() (int, error) {
	_, links, err := r.links()
	return max(0, rangeCount-len(links)), err
}

// dir is the directory of the links of this boot.
func (r Ranges) dir() (string, error) {
	boot, err := process.BootID()
	return filepath.Join(r.Data, "ids", boot), err
}

// links returns the links of this boot, and their directory.
func (r Ranges) links() (dir string, links []os.DirEntry, err error) {
	if dir, err = r.dir(); err != nil {
		return "", nil, err
	}
	links, err = os.ReadDir(dir)
	if errors.Is(err, unix.ENOTDIR) { // a file is in the place of the directory: no process could claim a range
		err = nil
	}
	return dir, links, erase.IgnoreMissing(err)
}

// claimOf is the target of the links of the sandbox.
func (r Ranges) claimOf(id string) string {
	owner, _ := json.Marshal(rangeOwner{r.Root, id}) // strings alone never fail
	return string(owner)
}

// Number is the number of the range with this first id, from 0 on. No two sandboxes of the host
// have the same.
func Number(base uint32) uint32 { return (base - FirstID) / spec.IDs }

func startOfSearch(owner string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(owner))
	return h.Sum32() % rangeCount
}

// freeLooked is the number of free ranges that [Ranges.Claimed] passes.
const freeLooked = 16

// Claimed tells whether the sandbox has a range. It looks in the order in which a claim
// searches, and it passes some free ranges: a process may have lived in them at the time of the
// claim, or another sandbox had them. It does not find a claim behind more free ranges than that.
func (r Ranges) Claimed(id string) (bool, error) {
	dir, err := r.dir()
	if err != nil {
		return false, err
	}
	owner := r.claimOf(id)
	start := startOfSearch(owner)
	free := 0
	for i := uint32(0); i < rangeCount && free < freeLooked; i++ {
		target, err := os.Readlink(filepath.Join(dir, rangeName((start+i)%rangeCount)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			free++
		case err == nil && target == owner:
			return true, nil
		}
	}
	return false, nil
}

// isInhabited says whether a process runs under an id of the range. That can be so without a
// claim: somebody deleted the claim, or the claim is in another data directory. isInhabited asks
// for three ids: the id that starts a command, the usual user, and the agent, which has the last
// id. Each sandbox has a process under one of them. The question is cheap if the kernel knows no
// such user, which is nearly always so.
func isInhabited(base uint32) bool {
	const usual = 1000
	return slices.ContainsFunc([]uint32{base, base + usual, base + spec.IDs - 1}, func(id uint32) bool {
		_, err := unix.Getpriority(unix.PRIO_USER, int(id))
		return err == nil
	})
}

// Release gives back the range that begins at base, if the sandbox has it. The range may be free
// already, or another sandbox may have it: a removal may have been killed after this step.
func (r Ranges) Release(id string, base uint32) error {
	dir, err := r.dir()
	if err != nil {
		return err
	}
	link := filepath.Join(dir, rangeName(Number(base)))
	target, err := os.Readlink(link)
	if err == nil && target == r.claimOf(id) {
		err = os.Remove(link)
	}
	if errors.Is(err, unix.EINVAL) { // not a link, so nobody has the range
		return nil
	}
	return erase.IgnoreMissing(err)
}

// ReleaseAll gives back all ranges of the sandbox.
func (r Ranges) ReleaseAll(id string) error {
	owners, err := r.Owners()
	errs := []error{err}
	for _, o := range owners {
		if o.Sandbox == id {
			errs = append(errs, r.Release(id, o.Base))
		}
	}
	return errors.Join(errs...)
}

// An Owner is a sandbox with a range. The range begins at the host id Base.
type Owner struct {
	Sandbox string
	Base    uint32
}

// Owners returns the sandboxes of this state root that have a range. A link that names no
// sandbox has no owner. The range of such a link stays taken until the next boot.
func (r Ranges) Owners() ([]Owner, error) {
	dir, links, err := r.links()
	if err != nil {
		return nil, err
	}
	var owners []Owner
	for _, e := range links {
		n, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil || n >= rangeCount {
			return nil, fmt.Errorf("%s is not the number of a range; remove it", filepath.Join(dir, e.Name()))
		}
		text, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) { // released, or no link
			continue
		}
		if err != nil {
			return nil, err
		}
		var o rangeOwner
		if json.Unmarshal([]byte(text), &o) == nil && o.Root == r.Root && isFileName(o.Sandbox) {
			owners = append(owners, Owner{Sandbox: o.Sandbox, Base: baseOf(uint32(n))})
		}
	}
	return owners, nil
}

// isFileName refuses the names of damaged links that lead to other directories.
func isFileName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.Contains(s, "/")
}

// open returns the directory of this boot. If open makes the directory, it removes the directories
// of earlier boots.
func (r Ranges) open() (*os.File, error) {
	ids, err := statedir.OpenData(r.Data, "ids")
	if err != nil {
		return nil, err
	}
	defer ids.Close()
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	dir, made, err := statedir.OpenBelow(ids, boot)
	if err != nil || !made {
		return dir, err
	}
	entries, err := ids.ReadDir(-1)
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != boot {
			errs = append(errs, os.RemoveAll(filepath.Join(ids.Name(), e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

func baseOf(n uint32) uint32 { return FirstID + n*spec.IDs }

func rangeName(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
