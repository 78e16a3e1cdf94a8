// Command sandbox-files serves the files of a sandbox to the process at the other ends of
// its standard input and output: see package internal/inside/files. The runtime carries it, and
// starts it inside when it is needed; nobody has to install it.
package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
)

func main() {
	// Executed from a descriptor, it has the name of that. This is its first thread.
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte("sandbox-files\x00")[0])), 0, 0, 0) // only a name
	unix.Umask(0o022)
	if err := files.Serve(files.All(), "", os.Stdin, os.Stdout); err != nil {
		os.Exit(1)
	}
}
