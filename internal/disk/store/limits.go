package store

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Limits bound a store, in bytes and in files: directories, links and all else with an
// inode count as files. The file system's own needs come out of them.
type Limits struct {
	Bytes, Files int64
}

// check refuses values that file systems take for no limit at all.
func (l Limits) check() error {
	if l.Bytes <= 0 || l.Files <= 0 {
		return fmt.Errorf("a store of %d bytes and %d files: both have to be more than 0", l.Bytes, l.Files)
	}
	return nil
}

// Usage is the present and the possible content of a store, for any directory f in it.
// Blocks that nobody can have, as ext4 keeps some back, count as neither.
func Usage(f *os.File) (used, total Limits, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return used, total, fmt.Errorf("statfs %s: %w", f.Name(), err)
	}
	used = Limits{Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Files: int64(st.Files - st.Ffree)}
	total = Limits{Bytes: used.Bytes + int64(st.Bavail)*st.Bsize, Files: int64(st.Files)}
	return used, total, nil
}
