package gateway

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const probeKind = "egress-probe"

func TestMain(m *testing.M) {
	takeOver(probeKind, probe)
	os.Exit(testhost.RunServing(m))
}

// A probe tries something, and returns its error.
var probes = map[string]func() error{
	"read /etc/passwd":       func() error { return open("/etc/passwd", unix.O_RDONLY) },
	"read /proc/self/status": func() error { return open("/proc/self/status", unix.O_RDONLY) },
	"list /":                 func() error { return open("/", unix.O_RDONLY|unix.O_DIRECTORY) },
	"open a path":            func() error { return open("/etc/passwd", unix.O_PATH) },
	"write /dev/null":        func() error { return open("/dev/null", unix.O_WRONLY) },
	"make a file":            func() error { return open("/tmp/egress-probe", unix.O_RDONLY|unix.O_CREAT) },
	"make a directory":       func() error { return unix.Mkdir("/tmp/egress-probe", 0o700) },
	"unlink":                 func() error { return unix.Unlink("/tmp/egress-probe") },
	"execve":                 func() error { return unix.Exec("/proc/self/exe", []string{"x"}, nil) },
	"fork":                   fork,
	"ptrace":                 func() error { return unix.PtraceAttach(unix.Getppid()) },
	"mount":                  func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") },
	"unshare":                func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"setns":                  func() error { return unix.Setns(0, 0) },
	"kill":                   func() error { return unix.Kill(unix.Getppid(), 0) },
	"tgkill":                 func() error { return unix.Tgkill(unix.Getppid(), unix.Getppid(), 0) },
	"prctl":                  func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0) },
	"setuid":                 func() error { return call(unix.SYS_SETUID, 0, 0, 0) },
	"setrlimit":              func() error { return call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_DATA, 0) },
	"listen":                 func() error { return call(unix.SYS_LISTEN, 0, 1, 0) },
	"a socket of unix(7)":    func() error { return socket(unix.AF_UNIX, unix.SOCK_STREAM, 0) },
	"a socket of packet(7)":  func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"a raw socket":           func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
	"io_uring":               func() error { return call(unix.SYS_IO_URING_SETUP, 1, 0, 0) },
	"bpf":                    func() error { return call(unix.SYS_BPF, 0, 0, 0) },
	"memory to execute": func() error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		return err
	},
	"the memory of another process": func() error { return call(unix.SYS_PROCESS_VM_READV, uintptr(unix.Getppid()), 0, 0) },
}

// allowed are the probes that have to succeed.
var allowed = map[string]func() error{
	"read /etc/hosts":       func() error { return open("/etc/hosts", unix.O_RDONLY) },
	"read /etc/resolv.conf": func() error { return open("/etc/resolv.conf", unix.O_RDONLY) },
	"a socket of TCP":       func() error { return socket(unix.AF_INET, unix.SOCK_STREAM, 0) },
	"the addresses":         func() error { _, err := net.InterfaceAddrs(); return err },
	"signals to itself":     func() error { return unix.Tgkill(unix.Getpid(), unix.Gettid(), 0) },
	"the garbage collector": func() error { runtime.GC(); return nil },
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func call(number, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall(number, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// fork makes a child, which ends at once.
func fork() error {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

// probe is the life of a worker that tells what it can do. Its file is a pipe.
func probe(args []string) error {
	runtime.LockOSThread()
	parent, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := errors.Join(worker.EndWithParent(parent), confine()); err != nil {
		return err
	}
	results := map[string]int{}
	for _, all := range []map[string]func() error{probes, allowed} {
		for name, try := range all {
			results[name] = int(errnoOf(try()))
		}
	}
	return json.NewEncoder(worker.File(0)).Encode(results)
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.EINVAL
	}
	return errno
}

func TestTheWorkerCanDoLittle(t *testing.T) {
	testhost.NeedRoot(t, "a worker changes its user")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var id process.ID
	err = worker.Start(probeKind, []string{strconv.Itoa(os.Getpid())}, []*os.File{w}, func(started process.ID) error {
		id = started
		return nil
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	results := map[string]int{}
	if err := json.NewDecoder(r).Decode(&results); err != nil {
		t.Fatalf("the worker has told nothing: %v", err)
	}
	if err := id.End(10 * time.Second); err != nil {
		t.Error(err)
	}
	for name := range probes {
		if errno := unix.Errno(results[name]); errno != unix.EPERM && errno != unix.EACCES {
			t.Errorf("%s: %v", name, errno)
		}
	}
	for name := range allowed {
		if errno := unix.Errno(results[name]); errno != 0 {
			t.Errorf("%s: %v", name, errno)
		}
	}
}

// Many connections of one box take nothing from the share of another.
func TestEachBoxHasAShare(t *testing.T) {
	s := sharesOf(20000)
	boxes := make([]*box, 100)
	for i := range boxes {
		boxes[i] = &box{}
	}
	s.setBoxes(len(boxes), 6*len(boxes))
	takeAll := func(b *box) (n int) {
		for s.acquire(b) {
			n++
		}
		return n
	}
	first := takeAll(boxes[0])
	if first < 1000 {
		t.Errorf("the first box has %d connections", first)
	}
	second, least := takeAll(boxes[1]), 1<<30
	for _, b := range boxes[2:] {
		least = min(least, takeAll(b))
	}
	t.Logf("the first box has %d connections, the second %d, each other at least %d", first, second, least)
	if least < 10 {
		t.Errorf("a box has %d connections", least)
	}
	for _, b := range boxes {
		for s.open[b] > 0 {
			s.release(b)
		}
	}
	if s.borrowed != 0 || len(s.open) != 0 {
		t.Errorf("%d connections are borrowed after all have ended", s.borrowed)
	}
	if again := takeAll(boxes[0]); again != first {
		t.Errorf("the first box has %d connections, and had %d", again, first)
	}
}
