package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// object is an open file of a layout or an archive.
type object struct {
	io.ReaderAt
	size  int64
	close func() error
}

// objects are the files of a layout or an archive, by their slash-separated names.
type objects interface {
	open(name string) (object, error)
	close() error
}

// read returns a small file.
func read(from objects, name string, limit int64) ([]byte, error) {
	o, err := from.open(name)
	if err != nil {
		return nil, err
	}
	if o.size > limit {
		return nil, errors.Join(fmt.Errorf("%s has %d bytes; at most %d are allowed", name, o.size, limit), o.close())
	}
	text, err := io.ReadAll(io.NewSectionReader(o, 0, o.size))
	if err = errors.Join(err, o.close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}

// checked returns a reader of a file that must have a digest and a size.
func checked(ctx context.Context, from objects, name, digest string, size int64) (io.ReadCloser, error) {
	o, err := from.open(name)
	if err != nil {
		return nil, err
	}
	if o.size != size {
		return nil, errors.Join(fmt.Errorf("%s has %d bytes instead of %d", name, o.size, size), o.close())
	}
	content := &stoppableReader{ctx.Err, io.NewSectionReader(o, 0, o.size)}
	return newCheckedReader(content, digest, size, nil, o.close), nil
}

// whole reads and closes a small object that a call without an error has opened.
func whole(content io.ReadCloser, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(content)
	return text, errors.Join(err, content.Close())
}

// stoppableReader is a reader that a context can stop.
type stoppableReader struct {
	stopped func() error
	io.Reader
}

func (s *stoppableReader) Read(p []byte) (int, error) {
	if err := s.stopped(); err != nil {
		return 0, err
	}
	return s.Reader.Read(p)
}

// tree are the files of a directory.
type tree struct{ root *os.Root }

func (t tree) open(name string) (object, error) {
	// Without O_NONBLOCK a named pipe would block.
	f, err := t.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return object{}, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return object{}, errors.Join(err, f.Close())
	}
	return object{f, info.Size(), f.Close}, nil
}

func (t tree) close() error { return t.root.Close() }

func blobName(digest string) string { return path.Join("blobs", "sha256", digits(digest)) }
