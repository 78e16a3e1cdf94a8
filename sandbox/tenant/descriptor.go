package tenant

import (
	"crypto/rand"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// Close of a Workspace or of Tenants can come while another call uses their directory. The number of a closed
// directory can be another file's, so the functions below use it only with the directory held open
// (descriptor.Use). A call after Close gets os.ErrClosed.

// fd is for system calls with a file that no other goroutine knows.
func fd(f *os.File) int { return int(f.Fd()) }

// fdPath leads to the file of a descriptor.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// hostPath is the present path of an open file.
func hostPath(f *os.File) (path string, err error) {
	err = descriptor.Use(f, func(fd int) (err error) {
		path, err = os.Readlink(fdPath(fd))
		return err
	})
	return path, err
}

// openAt opens one name in a directory, and nothing that is elsewhere: no link is
// followed, no other file system entered.
func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	n, err := openFD(dir, name, flags, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

func openFD(dir *os.File, name string, flags int, mode uint32) (n int, err error) {
	err = descriptor.Use(dir, func(in int) error {
		n, err = descriptor.Create(in, name, descriptor.OneMount, flags, mode)
		return err
	})
	return n, err
}

// openDir opens a directory for reading.
func openDir(in *os.File, name string) (*os.File, error) {
	return openAt(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// move moves one name to another directory, where it gets a new name.
func move(from *os.File, name string, to *os.File) (moved string, err error) {
	moved = rand.Text()
	err = descriptor.Use(from, func(from int) error {
		return descriptor.Use(to, func(to int) error {
			return unix.Renameat2(from, name, to, moved, unix.RENAME_NOREPLACE)
		})
	})
	return moved, err
}
