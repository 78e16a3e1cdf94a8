package overlay

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A transaction has two lists of stamps, with the format of [protocol.AppendStamp] and the paths of stampKey. CTime
// is the change time that the runtime has given to a file. Source is the change time of the file before the
// transaction joined. If the file has another time than CTime now, others have changed it, and undo does not
// touch it. Directories have no stamps but the spans of the journal.
const (
	// stampsName lists the files that the join has changed. CTime is 0 for a file that it has removed. A
	// transaction of an earlier version has no such list.
	stampsName = "stamps"
	// restoredName lists the files that undos have restored: undos of this transaction, and of later ones.
	restoredName = "restored"
)

// source names the applies of a transaction to a place.
func (w *work) source(place int) string {
	return fmt.Sprintf("place %d of transaction %d of %d in %d/%d", place, w.number, w.Since.UnixNano(), w.record.Init.Pid, w.record.Init.Start)
}

// stampKey names a file in a list of stamps. A directory of the host can be at two places.
func (w *work) stampKey(place int, name string) string {
	if host := w.Places[place].Host; host != "" {
		return "host:" + path.Join(host, name)
	}
	return path.Join(w.Places[place].Path, name)
}

// note adds the stamps of an apply to a place.
func (w *work) note(place int, stamps map[string]layer.Stamp) error {
	joined, err := readStamps(w.dir, stampsName)
	if err != nil || joined == nil {
		return err
	}
	list, all := stampsName, joined
	if w.State == txUndoing {
		list = restoredName
		if all, err = readStamps(w.dir, list); err != nil {
			return err
		}
		if all == nil {
			all = map[string]layer.Stamp{}
		}
	}
	for name, s := range stamps {
		if s.CTime != 0 && s.Inode == 0 { // it is there, and is no directory
			key := w.stampKey(place, name)
			all[key] = layer.Stamp{CTime: s.CTime, Source: joined[key].Source}
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
	dir, err := descriptor.OpenDir(w.store, "tx/"+strconv.Itoa(left[len(left)-1]))
	if err != nil {
		return err
	}
	defer dir.Close()
	joined, now, err := readStampLists(dir)
	if err != nil || joined == nil {
		return err
	}
	for key, r := range restored {
		switch own := joined[key]; {
		case own.CTime == 0: // an older transaction may have changed the file
			now[key] = r
		case r.Source == cmp.Or(now[key].CTime, own.CTime): // nobody else had changed it before the undone transaction
			now[key] = layer.Stamp{CTime: r.CTime, Source: own.Source}
		}
	}
	return writeStamps(dir, restoredName, now)
}

// readStampLists reads both lists. The first one is nil for a transaction of an earlier version.
func readStampLists(dir *os.File) (joined, restored map[string]layer.Stamp, err error) {
	if joined, err = readStamps(dir, stampsName); err != nil {
		return nil, nil, err
	}
	if restored, err = readStamps(dir, restoredName); restored == nil {
		restored = map[string]layer.Stamp{}
	}
	return joined, restored, err
}

// readStamps returns nil if there is no such list.
func readStamps(dir *os.File, list string) (map[string]layer.Stamp, error) {
	data, err := readIn(dir, list)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stamps of a transaction: %w", err)
	}
	return protocol.DecodeStamps(data)
}

func writeStamps(dir *os.File, list string, stamps map[string]layer.Stamp) error {
	err := draft.File{Path: StorePath(dir, list)}.Write(func(w io.Writer) error {
		out := bufio.NewWriter(w)
		var line []byte
		for _, s := range protocol.StampList(stamps) {
			line = protocol.AppendStamp(line[:0], s)
			_, _ = out.Write(line) // Flush returns the error
		}
		return out.Flush()
	})
	if err != nil {
		return fmt.Errorf("stamps of a transaction: %w", err)
	}
	return nil
}

// stamps returns the stamps of conflicting entries that nobody but the runtime has changed since the
// transaction joined. These are no conflicts.
func (w *work) stamps(place int, target *os.File, conflicts []spec.Unapplied) (map[string]layer.Stamp, error) {
	joined, restored, err := readStampLists(w.dir)
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
		if err != nil {
			continue
		}
		key := w.stampKey(place, c.Path)
		is := joined[key].CTime != 0 && st.Ctim.Nano() == cmp.Or(restored[key].CTime, joined[key].CTime)
		if joined == nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
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
	return slices.ContainsFunc(w.Ours, func(s span) bool { return s.contains(at, ctime) })
}
