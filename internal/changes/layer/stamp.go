package layer

import (
	"encoding/binary"
	"hash/fnv"

	"golang.org/x/sys/unix"
)

// A Stamp tells how an apply has left a path in the base.
type Stamp struct {
	// CTime is the change time, in nanoseconds.
	CTime int64
	// Source identifies the content of the layer's file that was applied: see SourceOf. It
	// is 0 where that cannot be told, and for all but regular files.
	Source int64
	// Inode is set for directories: each change in a directory also changes its
	// CTime.
	Inode uint64
	// Touched says that the directory was there before: the apply has only changed
	// entries of it.
	Touched bool
}

// SourceOf identifies the content of a layer's file by its inode and its change time.
func SourceOf(st *unix.Stat_t) int64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, []uint64{st.Ino, uint64(st.Ctim.Nano())}) // a hash takes all
	return int64(h.Sum64() | 1)
}

// appliedNames sorts the applied paths by their directories. If no layer has an applied
// path any more, the sandbox has deleted the path. There may be no whiteout: overlayfs
// makes none if it has seen no such directory in the base.
func (s *Stack) appliedNames() map[string][]string {
	if len(s.Stamps) == 0 {
		return nil
	}
	names := map[string][]string{}
	for path, stamp := range s.Stamps {
		if stamp.Touched {
			continue
		}
		dir, name := Split(path)
		names[dir] = append(names[dir], name)
	}
	return names
}

// isApplied tells whether an apply has made the directory of the base.
func (s *Stack) isApplied(d *directory) bool {
	stamp, ok := s.Stamps[d.path]
	if !ok || stamp.Touched || stamp.Inode == 0 {
		return false
	}
	var st unix.Statx_t
	err := unix.Statx(d.base, "", unix.AT_EMPTY_PATH, unix.STATX_INO, &st)
	return err == nil && st.Ino == stamp.Inode
}

// linkedAsApplied tells whether the base has a file of several names as an apply has left
// it, with the same number of names. w.now is of the file in the layer.
func (w *walker) linkedAsApplied(path string) bool {
	stamp, ok := w.Stamps[path]
	ctime := w.before.Ctime.Sec*1e9 + int64(w.before.Ctime.Nsec)
	return ok && stamp.CTime == ctime && w.now.Nlink == w.before.Nlink
}
