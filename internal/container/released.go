package container

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// fifo is the path of the fifo on which an init waits until it is released.
func (c *Container) fifo() string { return filepath.Join(c.root, c.ID(), "exec.fifo") }

// isReleased says that the init was released although its fifo is there: the start that released the init was killed
// before it removed the fifo. Another start would wait on the fifo as long as the container runs. An init has the fifo
// open until it is released (v1.5.2, container_linux.go:includeExecFifo, standard_init_linux.go:Init). isReleased
// returns false if this process cannot read the files of the init.
func (c *Container) isReleased() bool {
	fifo, err := inodeOf(c.fifo())
	if err != nil {
		return false
	}
	dir := filepath.Join("/proc", strconv.Itoa(c.initOf().pid), "fd")
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, f := range files {
		if open, err := inodeOf(filepath.Join(dir, f.Name())); err == nil && open == fifo {
			return false
		}
	}
	return true
}

// An inode names a file.
type inode struct {
	major, minor uint32
	number       uint64
}

// inodeOf asks no server: a server of FUSE or NFS may never answer.
func inodeOf(path string) (inode, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
	return inode{st.Dev_major, st.Dev_minor, st.Ino}, err
}
