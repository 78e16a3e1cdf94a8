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

// A transaction has two files of stamps. A stamp is the change time that the runtime has given to a
// file. If the file has another change time, others have changed it since, and undo does not touch it.
// A file without a stamp was last changed by others. Directories have no stamps but the spans of the
// journal. Each list is as in package launch, with the keys of keyOf as paths.
const (
	// stampsName has the stamps of the join. A transaction of an earlier version has no such file.
	stampsName = "stamps"
	// restoredName has the stamps of undos: of later transactions, and of the transaction itself.
	restoredName = "restored"
)

// source names the applies of a transaction to a place.
func (w *work) source(place int) string {
	return fmt.Sprintf("place %d of transaction %d of %d in %d/%d", place, w.number, w.Since.UnixNano(), w.record.Init.Pid, w.record.Init.Start)
}

// keyOf names a file in a list of stamps. A directory of the host can be at two places.
func (w *work) keyOf(place int, name string) string {
	if host := w.Places[place].Host; host != "" {
		return "host:" + path.Join(host, name)
	}
	return path.Join(w.Places[place].Path, name)
}

// note adds the stamps of an apply to a place.
func (w *work) note(place int, stamps map[string]layer.Stamp) error {
	if joined, err := readStamps(w.dir, stampsName); err != nil || joined == nil {
		return err
	}
	list := stampsName
	if w.State == txUndoing {
		list = restoredName
	}
	all, err := readStamps(w.dir, list)
	if err != nil {
		return err
	}
	if all == nil {
		all = map[string]layer.Stamp{}
	}
	for name, s := range stamps {
		if s.CTime != 0 && s.Inode == 0 { // it is there, and is no directory
			all[w.keyOf(place, name)] = layer.Stamp{CTime: s.CTime}
		}
	}
	return writeStamps(w.dir, list, all)
}

// passOn gives the stamps of undos to the next transaction that can be undone.
func (w *work) passOn() error {
	restored, err := readStamps(w.dir, restoredName)
	if err != nil || len(restored) == 0 {
		return err
	}
	left, err := joinedIn(w.store)
	if err != nil || len(left) == 0 {
		return err
	}
	dir, err := rootfs.OpenDir(w.store, "tx/"+strconv.Itoa(left[len(left)-1]))
	if err != nil {
		return err
	}
	defer dir.Close()
	next, err := readStamps(dir, restoredName)
	if err != nil {
		return err
	}
	if next == nil {
		next = restored
	} else {
		maps.Copy(next, restored)
	}
	return writeStamps(dir, restoredName, next)
}

// readStamps returns nil if there is no such list.
func readStamps(dir *os.File, list string) (map[string]layer.Stamp, error) {
	f, err := descriptor.OpenFile(int(dir.Fd()), list, descriptor.Beneath, unix.O_RDONLY)
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

func writeStamps(dir *os.File, list string, stamps map[string]layer.Stamp) error {
	name := StorePath(dir, list)
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

// stamps returns the stamps of conflicting entries that nobody but the runtime has changed since the
// transaction joined. These are no conflicts.
func (w *work) stamps(place int, target *os.File, conflicts []spec.Unapplied) (map[string]layer.Stamp, error) {
	noted, err := readStamps(w.dir, stampsName)
	if err != nil {
		return nil, err
	}
	restored, err := readStamps(w.dir, restoredName)
	if err != nil {
		return nil, err
	}
	if noted != nil {
		maps.Copy(noted, restored) // an undo comes after the join
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
		if err != nil {
			continue
		}
		is := noted[w.keyOf(place, c.Path)].CTime == st.Ctim.Nano()
		if noted == nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			is = w.changedThen(path.Join(w.Places[place].Path, c.Path), time.Unix(st.Ctim.Unix()))
		}
		if is {
			ours[c.Path] = layer.Stamp{CTime: st.Ctim.Nano()}
		}
	}
	return ours, nil
}

// changedThen tells whether a change was in one of the journal's spans.
func (w *work) changedThen(at string, ctime time.Time) bool {
	return slices.ContainsFunc(w.Ours, func(s span) bool { return s.has(at, ctime) })
}
