package inflate

import (
	"fmt"
	"io"
	"os"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"
)

// A NoRoomError says that a file would take more of the free space of its file system than is allowed.
type NoRoomError struct {
	Path string // of the file
	Keep int64  // the bytes that must stay free
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("write %s: less than %s of the file system would be left free", e.Path, units.BytesSize(float64(e.Keep)))
}

// keptPart is the part of the free space that [Sparing] leaves, as one of so many.
const keptPart = 10

// worthSparing is the least free space that [Sparing] leaves a part of. A file system with less is full.
const worthSparing = 1 << 20

// Sparing returns a writer to a file that leaves a tenth of the present free space of the file system, also if others write
// there at the same time. Then a write fails with a [*NoRoomError]. A file system with less than 1 MiB is full: there
// a write fails as the kernel has it, with ENOSPC.
func Sparing(f *os.File) (io.Writer, error) {
	free, err := freeBytes(f)
	if err != nil {
		return nil, err
	}
	if free < worthSparing {
		return f, nil
	}
	const most = 16 << 20
	return &reservingWriter{file: f, keep: free / keptPart, every: min(most, free/keptPart/4)}, nil
}

type reservingWriter struct {
	file *os.File
	keep int64
	// The free space is looked up after so many bytes.
	every, written int64
}

func (s *reservingWriter) Write(p []byte) (int, error) {
	if s.written += int64(len(p)); s.written >= s.every {
		s.written = 0
		free, err := freeBytes(s.file)
		if err != nil {
			return 0, err
		}
		if free-int64(len(p)) < s.keep {
			return 0, &NoRoomError{s.file.Name(), s.keep}
		}
	}
	return s.file.Write(p)
}

func freeBytes(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}
