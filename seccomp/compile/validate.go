// Package compile builds seccomp filters through libseccomp. It needs cgo, and is
// therefore not part of package seccomp.
//
// Its use is to fail early: [Validate] finds out before anything is made whether
// libcontainer could load a profile at start, on this machine, with this libseccomp. It
// does not load the filter of a sandbox; libcontainer does that in PID 1.
package compile

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"
)

// stubSize is room for the instructions that libcontainer puts before a filter to answer
// newer calls with ENOSYS: below 10 instructions for each architecture
// (libcontainer/seccomp/patchbpf/enosys_linux.go:generateEnosysStub).
const stubSize = 64

// Validate builds the filter for profile as libcontainer v1.5.2 does
// (libcontainer/seccomp/seccomp_linux.go:InitSeccomp), loads nothing, and
// returns the first thing that libseccomp or the kernel would not take. The
// error names the rule by its index and call, the caller adds whose profile it is.
//
// It refuses two things that libcontainer takes and that allow more than they
// say: under a default action that lets calls run, a rule against a call whose
// name this libseccomp does not know; and a rule with two conditions on one
// argument, which libcontainer makes alternatives.
func Validate(profile *specs.LinuxSeccomp) error {
	if profile == nil {
		return errors.New("compile: there is none")
	}
	// libseccomp's time grows with the square of the number of rules: seconds
	// where this ends, minutes not far above.
	if n := calls(profile); n > unix.BPF_MAXINSNS {
		return fmt.Errorf("compile: it has rules for %d calls, more than the %d instructions the kernel takes", n, unix.BPF_MAXINSNS)
	}
	if err := checkListener(profile); err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	filter, err := build(profile)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	defer filter.Release()
	program, err := export(filter)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	if n := len(program) / unix.SizeofSockFilter; n > unix.BPF_MAXINSNS-stubSize {
		return fmt.Errorf("compile: the filter has %d instructions, the kernel takes %d and %d are needed besides: use fewer rules with conditions",
			n, unix.BPF_MAXINSNS, stubSize)
	}
	return nil
}

// checkListener refuses a profile whose calls would wait for a listener: only filters of the runtime have one.
func checkListener(profile *specs.LinuxSeccomp) error {
	if profile.DefaultAction == specs.ActNotify {
		return fmt.Errorf("defaultAction: unknown action %q", profile.DefaultAction)
	}
	for i, call := range profile.Syscalls {
		if call.Action == specs.ActNotify {
			return fmt.Errorf("syscalls[%d]: action: unknown action %q", i, call.Action)
		}
	}
	return nil
}

// export returns the filter's program, an array of struct sock_filter.
func export(filter *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("seccomp-filter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "seccomp-filter")
	defer f.Close()
	if err := filter.ExportBPF(f); err != nil {
		return nil, fmt.Errorf("export filter: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read exported filter: %w", err)
	}
	program, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read exported filter: %w", err)
	}
	return program, nil
}
