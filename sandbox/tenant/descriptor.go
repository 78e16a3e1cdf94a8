package tenant

import (
	"os"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// fd is for system calls; its owner keeps it open meanwhile.
func fd(f *os.File) int { return int(f.Fd()) }

// ownPath leads to the file of a descriptor, once.
func ownPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(fd(f)) }

// openAt opens one name in a directory, and nothing that is elsewhere: no link is
// followed, no other file system entered.
func openAt(dir *os.File, name string, flags int, mode uint32) (*os.File, error) {
	n, err := openFD(dir, name, flags, mode)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

func openFD(dir *os.File, name string, flags int, mode uint32) (int, error) {
	return descriptor.Create(fd(dir), name, descriptor.OneMount, flags, mode)
}

// openDir opens a directory for reading.
func openDir(in *os.File, name string) (*os.File, error) {
	return openAt(in, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
