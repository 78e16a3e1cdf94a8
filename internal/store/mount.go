package store

import (
	"os"
	"strconv"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fsmount"
)

// An option of a file system; without a value it is a flag.
type option struct{ key, value string }

// mount makes a detached mount of a new file system, or of a device's, nosuid and
// nodev.
func mount(fsType, source string, options []option) (*os.File, error) {
	fs, err := fsmount.Open(fsType, source)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	for _, o := range options {
		if err := fs.Set(o.key, o.value); err != nil {
			return nil, err
		}
	}
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
	return mount("tmpfs", "store", []option{
		{"mode", "0700"}, {"uid", "0"}, {"gid", "0"},
		{"size", strconv.FormatInt(l.Bytes, 10)}, {"nr_inodes", strconv.FormatInt(l.Files, 10)},
	})
}
