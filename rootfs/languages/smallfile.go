package languages

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// mostRead is how much of a file is read.
const mostRead = 64 << 10

// A shortage is the first error of a search in a process or on a host that has too many files open. Such an error says
// nothing about the file, so a search with a shortage has no result. A search that
// does not know the homes has no result either.
type shortage struct{ err error }

// noteError keeps an error that is a shortage.
func (s *shortage) noteError(name string, err error) {
	if s.err == nil && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)) {
		s.err = fmt.Errorf("look for programs in %s: %w", name, err)
	}
}

// open is open(2), and notes a shortage. Unlike [os.Open], it does not try to add the file to the poller.
func (s *shortage) open(name string, flags int) (int, error) {
	fd, err := descriptor.Retry(func() (int, error) { return unix.Open(name, flags|unix.O_CLOEXEC, 0) })
	s.noteError(name, err)
	return fd, err
}

// smallFile is the content of a regular file, or nothing. A directory of PATH can lie in a workspace,
// where a sandbox can put a pipe, a link to a device or a file without an end. So the file is opened
// only after the look at its type.
func (s *shortage) smallFile(name string) string {
	at, err := s.open(name, unix.O_PATH)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(at) }() // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	fd, err := s.open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostRead))
	s.noteError(name, err)
	if err != nil {
		return ""
	}
	return string(text)
}
