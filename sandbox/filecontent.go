package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
)

// MaxFile is how large a file [Files.ReadFile] reads.
const MaxFile = 64 << 20

// ReadFile returns the content of a regular file, of MaxFile bytes at most; a
// larger one is an error that matches [syscall.EFBIG], for [Files.Open].
func (f *Files) ReadFile(ctx context.Context, name string) ([]byte, error) {
	r, err := f.Open(ctx, name, 0, MaxFile+1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxFile {
		return nil, &fs.PathError{Op: "read", Path: name, Err: unix.EFBIG}
	}
	return b, nil
}

// Open opens a regular file for reading from offset on. limit bounds the bytes; a negative
// limit reads all bytes that the file has at the time of the read. The caller must close
// it.
func (f *Files) Open(ctx context.Context, name string, offset, limit int64) (io.ReadCloser, error) {
	if offset < 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: unix.EINVAL}
	}
	var file *files.File
	err := f.callServer(ctx, "open", name, func(c *files.Client, full string) (err error) {
		file, err = c.Open(ctx, full, offset, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &fileReader{f, name, file}, nil
}

type fileReader struct {
	files *Files
	name  string
	*files.File
}

func (r *fileReader) Read(b []byte) (int, error) {
	n, err := r.File.Read(b)
	return n, r.files.worded("read", r.name, err)
}

// WriteFile is Write of data in memory.
func (f *Files) WriteFile(ctx context.Context, name string, data []byte, mode fs.FileMode) error {
	return f.Write(ctx, name, bytes.NewReader(data), mode)
}

// Write writes all of r to a regular file, and makes or replaces the file. A reader sees
// the old content or all of the new content, also if Write fails half-way. A symbolic link
// is followed. The mode is used as it is, without the umask; 0 stands for the mode of the
// replaced file, or 0644.
//
// An error of r is returned as it is. r may be called once more after ctx is done.
func (f *Files) Write(ctx context.Context, name string, r io.Reader, mode fs.FileMode) error {
	source := &source{r: r}
	err := f.callServer(ctx, "write", name, func(c *files.Client, full string) error {
		return c.Write(ctx, full, source, mode)
	})
	if source.err != nil {
		return source.err
	}
	return err
}

// A source remembers how it failed.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}
