package layer

import (
	"strings"

	"golang.org/x/sys/unix"
)

// A Stamp tells how an apply has left a path in the base.
type Stamp struct {
	// CTime is the change time, in nanoseconds.
	CTime int64
	// Inode is set of directories: others change their CTime by what they do in
	// them.
	Inode uint64
	// Touched directories were there before. The apply has only changed what is in
	// them.
	Touched bool
}

// appliedNames sorts the paths that were applied by their directories. One that no
// layer has any more was deleted in the overlay: no whiteout tells so where the
// overlay, when it last looked, had nothing of the directory in the base.
func (s *Stack) appliedNames() map[string][]string {
	if len(s.Stamps) == 0 {
		return nil
	}
	names := map[string][]string{}
	for path, stamp := range s.Stamps {
		if stamp.Touched {
			continue
		}
		dir, name := "", path
		if i := strings.LastIndexByte(path, '/'); i >= 0 {
			dir, name = path[:i], path[i+1:]
		}
		names[dir] = append(names[dir], name)
	}
	return names
}

// isApplied tells whether an apply has made the base's directory.
func (s *Stack) isApplied(d *directory) bool {
	stamp, ok := s.Stamps[d.path]
	if !ok || stamp.Touched || stamp.Inode == 0 {
		return false
	}
	var st unix.Statx_t
	err := unix.Statx(d.base, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st)
	return err == nil && st.Ino == stamp.Inode
}

// linkedAsApplied tells of a file of several names, which w.now is of, whether the
// base still has it as an apply has left it, with as many names.
func (w *walker) linkedAsApplied(path string) bool {
	stamp, ok := w.Stamps[path]
	ctime := w.before.Ctime.Sec*1e9 + int64(w.before.Ctime.Nsec)
	return ok && stamp.CTime == ctime && w.now.Nlink == w.before.Nlink
}
