package builder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// probeKind is a child that tries things.
const probeKind = "image-probe"

func TestMain(m *testing.M) {
	TakeOver()
	takeOver(probeKind, probe)
	os.Exit(testhost.RunServing(m))
}

// parent is the parent of a child. The child cannot ask later.
var parent = os.Getppid()

// An attempt is a call of a child.
type attempt struct {
	name string
	call func(files []*os.File) error
}

// refused are the calls that must fail with EPERM or EACCES.
func refused() []attempt {
	return []attempt{
		{"read /etc/passwd", open("/etc/passwd", unix.O_RDONLY)},
		{"read /dev/null", open("/dev/null", unix.O_RDONLY)},
		{"read a file of its own process", open("/proc/self/status", unix.O_RDONLY)},
		{"open a path", open("/etc/passwd", unix.O_PATH)},
		{"list /", open("/", unix.O_RDONLY|unix.O_DIRECTORY)},
		{"make a file", open("/tmp/image-probe", unix.O_WRONLY|unix.O_CREAT)},
		{"make a directory", raw(unix.SYS_MKDIRAT, 0, 0, 0)},
		{"unlink", raw(unix.SYS_UNLINKAT, 0, 0, 0)},
		{"rename", raw(unix.SYS_RENAMEAT2, 0, 0, 0)},
		{"change a mode", func(files []*os.File) error { return unix.Fchmod(int(files[0].Fd()), 0o777) }},
		{"change an owner", func(files []*os.File) error { return unix.Fchown(int(files[0].Fd()), 0, 0) }},
		{"an attribute", func(files []*os.File) error { return unix.Fsetxattr(int(files[0].Fd()), "user.a", nil, 0) }},
		{"a lock", func(files []*os.File) error { return unix.Flock(int(files[0].Fd()), unix.LOCK_EX) }},
		{"an owner of signals", func(files []*os.File) error {
			_, err := unix.FcntlInt(files[0].Fd(), unix.F_SETOWN, parent)
			return err
		}},
		{"a lease", func(files []*os.File) error {
			_, err := unix.FcntlInt(files[0].Fd(), unix.F_SETLEASE, unix.F_WRLCK)
			return err
		}},
		{"an ioctl", func(files []*os.File) error { return unix.IoctlSetInt(int(files[0].Fd()), unix.FS_IOC_GETFLAGS, 0) }},
		{"a socket of unix(7)", raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)},
		{"a socket of ip(7)", raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)},
		{"a socket of netlink(7)", raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, 0)},
		{"a pair of sockets", raw(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0)},
		{"send a descriptor", raw(unix.SYS_SENDMSG, 1, 0, 0)},
		{"kill", func([]*os.File) error { return unix.Kill(parent, 0) }},
		{"tgkill", func([]*os.File) error { return unix.Tgkill(parent, parent, 0) }},
		{"a pidfd", raw(unix.SYS_PIDFD_OPEN, uintptr(parent), 0, 0)},
		{"fork", raw(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)},
		{"execve", func([]*os.File) error { return unix.Exec("/proc/self/exe", []string{"x"}, nil) }},
		{"ptrace", func([]*os.File) error { return unix.PtraceAttach(parent) }},
		{"the memory of another process", raw(unix.SYS_PROCESS_VM_READV, uintptr(parent), 0, 0)},
		{"mount", func([]*os.File) error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") }},
		{"unshare", func([]*os.File) error { return unix.Unshare(unix.CLONE_NEWUSER) }},
		{"setuid", raw(unix.SYS_SETUID, 0, 0, 0)},
		{"prctl", raw(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, 0, 0)},
		{"setrlimit", raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_DATA, 0)},
		{"io_uring", raw(unix.SYS_IO_URING_SETUP, 1, 0, 0)},
		{"bpf", raw(unix.SYS_BPF, 0, 0, 0)},
		{"a file in memory", raw(unix.SYS_MEMFD_CREATE, 0, 0, 0)},
		{"memory to execute", func([]*os.File) error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			return err
		}},
	}
}

// allowed are the calls that must succeed.
func allowed() []attempt {
	return []attempt{
		{"write to a handed file", func(files []*os.File) error {
			_, err := files[0].WriteAt([]byte("handed"), 0)
			return err
		}},
		{"read a handed file", func(files []*os.File) error {
			_, err := files[0].ReadAt(make([]byte, 6), 0)
			return err
		}},
		{"shorten a handed file", func(files []*os.File) error { return files[0].Truncate(3) }},
		{"the garbage collector", func([]*os.File) error { runtime.GC(); return nil }},
		{"a thread", func([]*os.File) error {
			done := make(chan struct{})
			go func() { runtime.LockOSThread(); close(done) }()
			<-done
			return nil
		}},
	}
}

func open(path string, flags int) func([]*os.File) error {
	return func([]*os.File) error {
		fd, err := unix.Open(path, flags, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

func raw(number, a, b, c uintptr) func([]*os.File) error {
	return func([]*os.File) error {
		if r, _, errno := unix.RawSyscall6(number, a, b, c, 0, 0, 0); errno != 0 {
			return errno
		} else if number == unix.SYS_CLONE && r == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		return nil
	}
}

// sink keeps memory in use.
var sink [][]byte

// probe is the work of a child that tries things.
func probe(j job, files []*os.File) (s index.Summary, err error) {
	switch j.Work {
	case "try":
		return s, tryAll(files)
	case "ids":
		return s, fmt.Errorf("%d %d %d", os.Getuid(), os.Getgid(), os.Geteuid())
	case "memory":
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			sink = append(sink, b)
		}
	case "loop":
		for i := 0; ; i++ {
			runtime.KeepAlive(i)
		}
	case "output":
		for err == nil {
			_, err = files[0].Write(make([]byte, 1<<20))
		}
		return s, err
	case "panic":
		panic("a hostile\nlayer \x1b[31m")
	case "wait":
		_, err = files[0].Read(make([]byte, 1))
		return s, err
	case "words":
		return s, errors.New("two\nlines and \x1b[31m" + strings.Repeat("x", 1<<20))
	case "flood":
		_, err = os.NewFile(4, "result").Write(make([]byte, maxResult*4))
		return s, err
	}
	return s, errors.New("unknown")
}

func tryAll(files []*os.File) error {
	var faults []string
	for _, try := range refused() {
		if err := try.call(files); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			faults = append(faults, fmt.Sprintf("%s: %v", try.name, err))
		}
	}
	for _, try := range allowed() {
		if err := try.call(files); err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", try.name, err))
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

func usualBounds() bounds { return bounds{Memory: baseMemory, CPU: time.Minute, Output: 1 << 20} }

// runProbe runs a probe on an empty file.
func runProbe(ctx context.Context, t *testing.T, work string, b bounds) (*os.File, error) {
	t.Helper()
	testhost.NeedRoot(t, "a worker changes its user")
	f, err := os.Create(filepath.Join(t.TempDir(), "handed"))
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, f)
	_, err = build(ctx, probeKind, job{Work: work, Bounds: b}, []*os.File{f})
	return f, err
}

func TestTheChildCanDoLittle(t *testing.T) {
	f, err := runProbe(t.Context(), t, "try", usualBounds())
	if err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(f.Name()); err != nil || string(text) != "han" {
		t.Errorf("the child has written %q: %v", text, err)
	}
}

func TestTheChildIsAnotherUser(t *testing.T) {
	_, err := runProbe(t.Context(), t, "ids", usualBounds())
	if err == nil || err.Error() != fmt.Sprintf("%d %[1]d %[1]d", worker.ID) {
		t.Errorf("the ids are %v", err)
	}
}

const raceMemory = "ThreadSanitizer failed to allocate"

// Each end of a child has a reason of one line.
func TestAChildEndsWithAReason(t *testing.T) {
	tests := map[string]struct {
		bounds bounds
		reason string
	}{
		"memory": {bounds{Memory: 64 << 20, CPU: time.Minute}, "the content needs more than 64 MiB of memory"},
		"loop":   {bounds{Memory: baseMemory, CPU: time.Second}, "the content needs more than 1s of CPU time"},
		"output": {bounds{Memory: baseMemory, CPU: time.Minute, Output: 3 << 20}, "file too large"},
		"panic":  {usualBounds(), "the child ended with status 2: panic: a hostile"},
		"words":  {usualBounds(), "two"},
		"flood":  {usualBounds(), "the child gave no valid result"},
	}
	for work, test := range tests {
		t.Run(work, func(t *testing.T) {
			f, err := runProbe(t.Context(), t, work, test.bounds)
			// The race detector has words of its own for its memory.
			if err == nil || !strings.Contains(strings.Replace(err.Error(), raceMemory, tests["memory"].reason, 1), test.reason) {
				t.Fatalf("the reason is %v", err)
			}
			if text := err.Error(); strings.ContainsAny(text, "\n\x1b") || len(text) > 1000 {
				t.Errorf("the reason is no line: %q", text)
			}
			if info, err := f.Stat(); err != nil || info.Size() > test.bounds.Output {
				t.Errorf("the file has %d bytes: %v", info.Size(), err)
			}
		})
	}
}

func TestTheEndOfTheContextEndsTheChild(t *testing.T) {
	testhost.NeedRoot(t, "a worker changes its user")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	gone := errors.New("the client has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
	if _, err := build(ctx, probeKind, job{Work: "wait", Bounds: usualBounds()}, []*os.File{r}); !errors.Is(err, gone) {
		t.Errorf("the reason is %v", err)
	}
}
