package languages

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// mostRead is how much of a file is read.
const mostRead = 64 << 10

// smallFile is the content of a regular file, or nothing. A directory of PATH can lie in a workspace,
// where a sandbox can put a pipe, a link to a device or a file without an end. So the file is opened
// only after the look at its type.
func smallFile(name string) string {
	at, err := os.OpenFile(name, unix.O_PATH, 0)
	if err != nil {
		return ""
	}
	defer at.Close()
	if info, err := at.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", at.Fd()))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostRead))
	if err != nil {
		return ""
	}
	return string(text)
}
