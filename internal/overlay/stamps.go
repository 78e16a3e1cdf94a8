package overlay

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// stampsName is the file with the stamps of a transaction: how the runtime has left the files that
// the transaction changed. It is a list as in package launch, with the sandbox's paths. A file of the
// sandbox without its stamp was changed by others. Directories have spans in the journal instead.
const stampsName = "stamps"

// source names the applies of a transaction to a place.
func (w *work) source(place int) string {
	return fmt.Sprintf("place %d of transaction %d in %d/%d", place, w.number, w.record.Init.Pid, w.record.Init.Start)
}

// note adds the stamps of an apply to a place.
func (w *work) note(place int, stamps map[string]layer.Stamp) error {
	all, err := readStamps(w.dir)
	if err != nil {
		return err
	}
	if all == nil {
		all = map[string]layer.Stamp{}
	}
	for name, s := range stamps {
		at := path.Join(w.Places[place].Path, name)
		if s.CTime == 0 { // the file is gone
			delete(all, at)
		} else if s.Inode == 0 { // it is no directory
			all[at] = layer.Stamp{CTime: s.CTime}
		}
	}
	return writeStamps(w.dir, all)
}

// passOn gives the stamps of a transaction that was undone to the next one that can be undone.
func (w *work) passOn() error {
	left, err := joinedIn(w.store)
	if err != nil || len(left) == 0 {
		return err
	}
	dir, err := rootfs.OpenDir(w.store, "tx/"+strconv.Itoa(left[len(left)-1]))
	if err != nil {
		return err
	}
	defer dir.Close()
	next, err := readStamps(dir)
	if err != nil || next == nil {
		return err
	}
	own, err := readStamps(w.dir)
	if err != nil {
		return err
	}
	maps.Copy(next, own)
	return writeStamps(dir, next)
}

// readStamps returns nil for a transaction of an earlier version, and for one that has not joined.
func readStamps(dir *os.File) (map[string]layer.Stamp, error) {
	f, err := descriptor.OpenFile(int(dir.Fd()), stampsName, descriptor.Beneath, unix.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stamps of a transaction: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("stamps of a transaction: %w", err)
	}
	return launch.DecodeStamps(data)
}

func writeStamps(dir *os.File, stamps map[string]layer.Stamp) error {
	name := StorePath(dir, stampsName)
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("stamps of a transaction: %w", err)
	}
	out := bufio.NewWriter(f)
	var line []byte
	for _, s := range launch.StampList(stamps) {
		line = launch.AppendStamp(line[:0], s)
		_, _ = out.Write(line) // Flush returns the error
	}
	if err := errors.Join(out.Flush(), f.Close()); err != nil {
		return fmt.Errorf("stamps of a transaction: %w", err)
	}
	return os.Rename(name+".new", name)
}

// stamps are of the conflicting entries that the runtime itself has changed last. Such changes are no
// conflicts.
func (w *work) stamps(place string, target *os.File, conflicts []spec.Unapplied) (map[string]layer.Stamp, error) {
	noted, err := readStamps(w.dir)
	if err != nil {
		return nil, err
	}
	ours := map[string]layer.Stamp{}
	for _, c := range conflicts {
		fd, err := descriptor.Open(int(target.Fd()), c.Path, descriptor.Beneath, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			continue // the conflict stays one
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err == nil && w.isOurs(path.Join(place, c.Path), &st, noted) {
			ours[c.Path] = layer.Stamp{CTime: st.Ctim.Nano()}
		}
	}
	return ours, nil
}

// isOurs tells whether the runtime has changed an entry last.
func (w *work) isOurs(at string, st *unix.Stat_t, noted map[string]layer.Stamp) bool {
	if noted != nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return noted[at].CTime == st.Ctim.Nano()
	}
	ctime := time.Unix(st.Ctim.Unix())
	return slices.ContainsFunc(w.Ours, func(s span) bool { return s.has(at, ctime) })
}
