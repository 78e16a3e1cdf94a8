package jobs

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// tracers are programs that trace others with ptrace(2).
var tracers = []string{"dlv", "gdb", "gdbserver", "lldb", "ltrace", "rr", "strace"}

// forbids says why a command's program cannot do its work in the sandbox, and the way out. The
// system calls of such a program return EPERM, and nothing counts them. forbids is empty for other
// programs, and for a profile of the caller's own.
func forbids(config spec.Config, args []string) string {
	if !slices.Contains([]string{"default", "strict", "debug"}, config.Seccomp) {
		return ""
	}
	switch program := programOf(args); {
	case slices.Contains(tracers, program) && config.Seccomp != "debug":
		return fmt.Sprintf("the profile %s forbids programs to trace others (allow it with --seccomp debug)", config.Seccomp)
	case program == "mount" || program == "umount":
		return "a sandbox cannot mount file systems (show a directory of the host with --bind)"
	case program == "perf":
		return "no built-in profile allows performance events (give a profile file to --seccomp)"
	}
	return ""
}

// programOf is the name of the program that a command runs. If that is a shell with a line, it is the
// first word of the line.
func programOf(args []string) string {
	if len(args) == 3 && path.Base(args[0]) == "sh" && args[1] == "-c" {
		args = strings.Fields(args[2])
	}
	if len(args) == 0 {
		return ""
	}
	return path.Base(args[0])
}
