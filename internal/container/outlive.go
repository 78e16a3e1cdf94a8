package container

// #include "outlive.h"
import "C"

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// A seccomp filter with SCMP_ACT_KILL_THREAD kills the main thread of the second life of this program if
// the set-up of the container, or the execve of its command, uses a forbidden system call. The other
// threads of Go's runtime live on, and nobody would learn of the end of the container. So the second life
// has a thread that ends the process together with its main thread. The thread counts against the limit
// of processes of the container: only a process whose filter kills threads has it.
//
// libcontainer chooses the arguments and the environment of the second life, except the level of the log.
// A sign before the level asks for the thread. strconv.Atoi and strtol(3) read the level as without a sign.
const (
	levelVariable = "_LIBCONTAINER_LOGLEVEL"
	watchedSign   = "+"
)

// watched is the level of the log for a process that has to end with its main thread.
func watched(level string) string { return watchedSign + level }

// killsThreads says that a filter can kill a thread without the rest of its process.
func killsThreads(s *configs.Seccomp) bool {
	kills := func(a configs.Action) bool { return a == configs.Kill || a == configs.KillThread }
	return s != nil && (kills(s.DefaultAction) || slices.ContainsFunc(s.Syscalls, func(c *configs.Syscall) bool {
		return c != nil && kills(c.Action)
	}))
}

// watchMainThread is called on the main thread in the second life of this program.
func watchMainThread() {
	if !strings.HasPrefix(os.Getenv(levelVariable), watchedSign) {
		return
	}
	if errno := C.end_with_main_thread(); errno != 0 {
		fmt.Fprintf(os.Stderr, "start a thread that ends with the main thread: %v\n", unix.Errno(errno))
		os.Exit(1)
	}
}
