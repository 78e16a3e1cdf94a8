package worker

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PrivateMemory is the size of the private memory of the process, in bytes.
func PrivateMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/self/statm") // proc_pid_statm(5)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 6 {
		return 0, fmt.Errorf("/proc/self/statm: %q", text)
	}
	pages, err := strconv.ParseUint(fields[5], 10, 64)
	return pages * uint64(os.Getpagesize()), err
}

// EndWithParent has the kernel kill this process when its parent ends. The calling thread must live as
// long as the process.
func EndWithParent(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if unix.Getppid() != parent {
		return errors.New("the parent has ended")
	}
	return nil
}
