package store

import (
	"os"
	"strconv"
)

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
