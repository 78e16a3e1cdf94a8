package integration

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// notifying asks the agent behind the socket about the system calls.
func notifying(socket string, calls ...string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Seccomp = &specs.LinuxSeccomp{
			DefaultAction: specs.ActAllow, ListenerPath: socket, ListenerMetadata: "the agent's",
			Syscalls: []specs.LinuxSyscall{{Names: calls, Action: specs.ActNotify}},
		}
	}
}

// answer takes the next request from a seccomp listener, whose number of the
// system call must be nr, and answers with the error.
func answer(t *testing.T, listener *os.File, nr int, errno unix.Errno) {
	t.Helper()
	// struct seccomp_notif and seccomp_notif_resp, seccomp(2).
	var request struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	var response struct {
		id    uint64
		val   int64
		error int32
		flags uint32
	}
	fds := []unix.PollFd{{Fd: int32(listener.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	for errors.Is(err, unix.EINTR) { // by a signal of the Go runtime
		n, err = unix.Poll(fds, int(patience.Milliseconds()))
	}
	if n != 1 {
		t.Fatalf("no request: %v", err)
	}
	ioctl := func(number uintptr, arg unsafe.Pointer) {
		t.Helper()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener.Fd(), number, uintptr(arg)); errno != 0 {
			t.Fatalf("ioctl %#x: %v", number, errno)
		}
	}
	ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&request))
	if int(request.nr) != nr {
		t.Errorf("asked about the call %d, want %d", request.nr, nr)
	}
	response.id, response.error = request.id, -int32(errno)
	ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&response))
}

// The agent gets the listener and who it is of, for the container's first
// process and each exec, and its answers are what the processes see.
func TestSeccompListenerGoesToTheAgent(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		socket := listenForFDs(t)
		b := newBundle(t, []string{"sh", "-c", "read go; mkdir /tmp/x"}, notifying(socket.path, "mkdir"), func(s *specs.Spec) {
			s.Annotations = map[string]string{"org.example": "kept"}
		})
		out := filepath.Join(t.TempDir(), "out")
		pid := createWritingTo(t, r, b, out)
		check := func(status string, wantPID int) *os.File {
			t.Helper()
			message, files := socket.receive(t)
			var got map[string]any
			decode(t, message, &got)
			want := map[string]any{
				"ociVersion": "1.3.0", "fds": []any{"seccompFd"}, "pid": got["pid"], "metadata": "the agent's",
				"state": map[string]any{"ociVersion": "1.3.0", "id": "c", "status": status, "pid": float64(pid), "bundle": b.dir,
					"annotations": map[string]any{"org.example": "kept"}},
			}
			if wantPID != 0 {
				want["pid"] = float64(wantPID)
			}
			if g, w := asJSON(t, got), asJSON(t, want); g != w {
				t.Errorf("told %s, want %s", g, w)
			}
			if len(files) != 1 {
				t.Fatalf("%d descriptors", len(files))
			}
			return files[0]
		}
		listener := check("creating", pid)
		r.run("start", "c")
		answer(t, listener, unix.SYS_MKDIR, unix.EXDEV)
		r.waitUntil("c", "stopped")
		if got, want := content(t, out), "mkdir: can't create directory '/tmp/x': Invalid cross-device link\n"; got != want {
			t.Errorf("program printed %q, want %q", got, want)
		}
	})
}

func TestSeccompListenerOfAnExec(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		socket := listenForFDs(t)
		b := newBundle(t, []string{"sleep", "1000"}, notifying(socket.path, "mkdir"))
		r.started(b)
		socket.receive(t)
		p := start(t, r.command("exec", "c", "mkdir", "/tmp/x"))
		message, files := socket.receive(t)
		var told specs.ContainerProcessState
		decode(t, message, &told)
		if told.State.Status != "running" || told.State.Pid == told.Pid || len(files) != 1 {
			t.Errorf("told %s, %d descriptors", message, len(files))
		}
		answer(t, files[0], unix.SYS_MKDIR, unix.ENOMEDIUM)
		if got, want := p.wait(), (result{1, "", "mkdir: can't create directory '/tmp/x': No medium found\n"}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// createWritingTo creates the container "c", whose program writes into file.
func createWritingTo(t *testing.T, r *ociRuntime, b *bundle, file string) (pid int) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := r.command("create", "--bundle", b.dir, "c")
	cmd.Stdout, cmd.Stderr = f, f
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("create: status %d, %s", got.code, content(t, file))
	}
	return r.state("c").PID
}

func TestSeccompListenersThatCannotBe(t *testing.T) {
	deaf := filepath.Join(t.TempDir(), "nobody")
	rows := map[string]struct {
		change func(*specs.Spec)
		says   string
	}{
		"no listener":    {notifying("", "mkdir"), "listenerPath|seccomp"},
		"nobody listens": {notifying(deaf, "mkdir"), "no such file or directory"},
		"write":          {notifying(deaf, "write"), "SCMP_ACT_NOTIFY cannot be used for the write syscall"},
		"default": {func(s *specs.Spec) {
			notifying(deaf)(s)
			s.Linux.Seccomp.DefaultAction = specs.ActNotify
			s.Linux.Seccomp.Syscalls = nil
		}, "SCMP_ACT_NOTIFY cannot be used as default action"},
		"unknown action": {func(s *specs.Spec) { notifying(deaf, "mkdir")(s); s.Linux.Seccomp.DefaultAction = "SCMP_ACT_NONSENSE" }, "SCMP_ACT_NONSENSE"},
		"unknown operator": {func(s *specs.Spec) {
			notifying(deaf, "mkdir")(s)
			s.Linux.Seccomp.Syscalls[0].Args = []specs.LinuxSeccompArg{{Op: "SCMP_CMP_NONSENSE"}}
		}, "SCMP_CMP_NONSENSE"},
		"unknown flag": {func(s *specs.Spec) {
			notifying(deaf, "mkdir")(s)
			s.Linux.Seccomp.Flags = []specs.LinuxSeccompFlag{"NONSENSE"}
		}, "NONSENSE"},
		"unknown architecture": {func(s *specs.Spec) {
			notifying(deaf, "mkdir")(s)
			s.Linux.Seccomp.Architectures = []specs.Arch{"SCMP_ARCH_NONSENSE"}
		}, "SCMP_ARCH_NONSENSE"},
	}
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			b := newBundle(t, []string{"true"}, rows[name].change)
			r.shows(result{code: 1, stderr: rows[name].says}, "run", "--bundle", b.dir, "c")
		}
	})
}

// Flags and errors of the filter are as the bundle says.
func TestSeccompErrorsAreTheBundles(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, []string{"sh", "-c", "grep Seccomp: /proc/self/status; mkdir /tmp/x; chmod 0 /tmp"}, func(s *specs.Spec) {
			s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Flags: []specs.LinuxSeccompFlag{specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow},
				Syscalls: []specs.LinuxSyscall{
					{Names: []string{"mkdir", "a_call_of_the_future"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOMEDIUM))},
					{Names: []string{"chmod", "fchmodat"}, Action: specs.ActErrno},
				}}
		})
		want := result{code: 1, stdout: "Seccomp:\t2\n", stderr: "mkdir: .*No medium found\nchmod: .*Operation not permitted\n"}
		r.shows(want, "run", "--bundle", b.dir, "c")
	})
}
