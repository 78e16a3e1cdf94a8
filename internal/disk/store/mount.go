package store

import (
	"os"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
)

// mount makes a detached mount of a new file system, or of a device's, nosuid and
// nodev.
func mount(fsType, source string, options ...[2]string) (*os.File, error) {
	fs, err := fsmount.Open(fsType, source, options...)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	mnt, err := fs.Mount()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(mnt), source), nil
}

// Memory makes a store in memory: a tmpfs. Writes are charged to the cgroup of the writer.
// Its ids are those of the kernel, of no namespace. It can be used once: with the last
// reference it is gone.
func Memory(l Limits) (*os.File, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	return mount("tmpfs", "store",
		[2]string{"mode", "0700"}, [2]string{"uid", "0"}, [2]string{"gid", "0"},
		[2]string{"size", strconv.FormatInt(l.Bytes, 10)}, [2]string{"nr_inodes", strconv.FormatInt(l.Files, 10)})
}
