package languages

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// open is open(2). Unlike [os.Open], it does not try to add the file to the poller.
func open(name string, flags int) (fd int, err error) {
	return descriptor.Retry(func() (int, error) { return unix.Open(name, flags|unix.O_CLOEXEC, 0) })
}

// mostRead is how much of a file is read.
const mostRead = 64 << 10

// smallFile is the content of a regular file, or nothing. A directory of PATH can lie in a workspace,
// where a sandbox can put a pipe, a link to a device or a file without an end. So the file is opened
// only after the look at its type.
func smallFile(name string) string {
	at, err := open(name, unix.O_PATH)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(at) }() // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	fd, err := open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY)
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostRead))
	if err != nil {
		return ""
	}
	return string(text)
}
