package launcher

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// loadedFilter is what the kernel says that a process has loaded first
// (ptrace(2), PTRACE_SECCOMP_GET_FILTER, Linux 4.4).
func loadedFilter(t *testing.T, pid int) []byte {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatal(err)
	}
	defer unix.PtraceDetach(pid)
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	program := make([]byte, unix.BPF_MAXINSNS*unix.SizeofSockFilter)
	count, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid),
		0, uintptr(unsafe.Pointer(&program[0])), 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	return program[:int(count)*unix.SizeofSockFilter]
}

// PID 1 of a sandbox has the filter of the cache, and no other.
func TestAgentHasTheCachedFilter(t *testing.T) {
	l := newTestLauncher(t)
	for _, name := range []string{"default", "strict", "debug"} {
		sb := up(t, l, "", spec.Config{Seccomp: name})
		want, note := opened(t, l.filters(), agentProfile(t, name))
		have := loadedFilter(t, sb.live.init().Pid)
		if string(have) != string(encodeFilterProgram(want)) || note != "" {
			t.Errorf("%s: PID 1 has %d bytes of filter, the cache %d; note %q", name, len(have), len(want)-8, note)
		}
	}
}

// encodeFilterProgram is a file's content without its head.
func encodeFilterProgram(content []byte) []byte {
	return content[len(encodeFilter(container.Filter{})):]
}
