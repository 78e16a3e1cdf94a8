package launcher

import (
	"io"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp"
	"github.com/sandbox-runtime/sandbox-runtime/seccomp/compile"
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
		sb := createUp(t, l, "", spec.Config{Seccomp: name})
		want, note := cachedFilter(t, l, name)
		have := loadedFilter(t, sb.session.Init().Pid)
		if string(have) != string(programOf(want)) || note != "" {
			t.Errorf("%s: PID 1 has %d bytes of filter, the cache %d; note %q", name, len(have), len(want)-8, note)
		}
	}
}

// cachedFilter is what PID 1 of a sandbox with a profile loads.
func cachedFilter(t *testing.T, l *Launcher, name string) (content []byte, note string) {
	t.Helper()
	host, err := l.host()
	if err != nil {
		t.Fatal(err)
	}
	profile, err := seccomp.WithGroupIDs(name)
	if err != nil {
		t.Fatal(err)
	}
	if profile, err = seccomp.ForAgent(profile, host.Mode == cgroups.V2); err != nil {
		t.Fatal(err)
	}
	if compile.CanNotify() {
		profile = seccomp.Told(profile)
	}
	f, note, err := l.filters.Open(t.Context(), profile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if content, err = io.ReadAll(f); err != nil {
		t.Fatal(err)
	}
	return content, note
}

// programOf is a filter without its flags and its number of instructions, 32 bits each.
func programOf(content []byte) []byte { return content[8:] }
