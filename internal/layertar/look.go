package layertar

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxHoles is how much of all files may be no data on disk.
const maxHoles = 1 << 30

// look describes a file at the moment.
func look(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return st, nil
}
