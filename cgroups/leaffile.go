package cgroups

import (
	"io/fs"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A leafFile is one of a leaf's own files, held open until the leaf is closed:
// to open one costs more than to read it.
type leafFile struct {
	name string
	fd   int
}

// The counts of a v1 leaf that can be set to 0.
const (
	peakFile = "/memory.max_usage_in_bytes"
	timeFile = "/cpuacct.usage"
)

// read reads one of the leaf's files in a place into room, as far as that goes.
func (l *Leaf) read(p place, file string, room []byte) ([]byte, error) {
	n, err := l.withFile(p, file, func(fd int) (int, error) { return unix.Pread(fd, room, 0) })
	if err != nil {
		return nil, err
	}
	return room[:n], nil
}

// reset sets a count to 0.
func (l *Leaf) reset(p place, file string) error {
	_, err := l.withFile(p, file, func(fd int) (int, error) { return unix.Pwrite(fd, []byte("0"), 0) })
	return err
}

func (l *Leaf) withFile(p place, file string, f func(fd int) (int, error)) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, err := l.file(p, file)
	if err != nil {
		return 0, err
	}
	if l.closed {
		defer unix.Close(fd)
	}
	n, err := descriptor.Retry(func() (int, error) { return f(fd) })
	if err != nil {
		// The path is made for an error only: reads are often.
		return 0, &fs.PathError{Op: "use", Path: filepath.Join(p.dir.Name(), l.name+file), Err: err}
	}
	return n, nil
}

// file opens a file, or finds it open. The caller has mu, and closes it if the
// leaf is closed.
func (l *Leaf) file(p place, name string) (int, error) {
	for _, f := range l.files {
		if f.name == name {
			return f.fd, nil
		}
	}
	flags := unix.O_RDONLY
	if !p.tree.v2 && slices.Contains([]string{peakFile, timeFile}, name) {
		flags = unix.O_RDWR
	}
	fd, err := openAt(p.dir, l.name+name, flags)
	if err == nil && !l.closed {
		l.files = append(l.files, leafFile{name, fd})
	}
	return fd, err
}
