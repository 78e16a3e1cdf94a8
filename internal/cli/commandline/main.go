package commandline

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Main is the main function of a program with commands. It reports the error of run, and ends the
// program with the exit status.
//
// Main keeps the process's first thread to itself. This program and libcontainer leave
// threads in the mount namespaces of sandboxes, for the Go runtime to end. The Go runtime
// does not end the first thread, which would keep the mounts and the file systems below
// them.
func Main(run func(*Reporter) error) {
	runtime.LockOSThread()
	status := make(chan int)
	go func() {
		out := NewReporter(os.Stderr)
		code, message := ExitCode(run(out))
		if message != nil {
			out.Fatal(message)
		}
		status <- code
	}()
	os.Exit(<-status)
}

// WholeVariable is the environment variable that has the entry of the file choose the whole program:
// see cmd/sandbox-entry/entry.c.
const WholeVariable = "_SANDBOX_RUNTIME_WHOLE"

// ExecuteWhole executes the whole program in place of the OCI program, with the same arguments. The two
// are in one file. The process stays the same, with its standard streams. It returns only an error.
func ExecuteWhole() error {
	if os.Getenv(WholeVariable) != "" { // or this program would execute itself for ever
		return fmt.Errorf("%q is no OCI command, and this file has no other commands; use the file %s of make build",
			strings.Join(os.Args[1:], " "), Program)
	}
	const self = "/proc/self/exe"
	err := unix.Exec(self, os.Args, append(os.Environ(), WholeVariable+"=1"))
	return &os.PathError{Op: "execute", Path: self, Err: err}
}

// SetName gives the process the name of the program. The kernel takes the name of a process that was
// executed from /proc from the last part of the path, which is "exe" or the number of a descriptor.
func SetName() { _ = os.WriteFile("/proc/self/comm", []byte(Program), 0) }
