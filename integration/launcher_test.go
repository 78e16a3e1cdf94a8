package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A launcherProcess is one that the test has started, on a socket of its own.
type launcherProcess struct {
	*testProcess
	socket string
}

// launcher starts a launcher that listens.
func (s *sandboxes) launcher(socket string, flags ...string) *launcherProcess {
	s.t.Helper()
	cmd := s.command(append([]string{"launcher", "--socket", socket}, flags...)...)
	p := &launcherProcess{start(s.t, cmd), socket}
	s.t.Cleanup(p.leave)
	eventually(s.t, "the launcher to listen", func() bool {
		if p.ended() {
			s.t.Fatalf("the launcher ended: %+v", p.wait())
		}
		return strings.Contains(p.stderr(), "listening")
	})
	return p
}

// leave lets the launcher finish the removals of sandboxes. Otherwise their remains would be left for
// prune.
func (p *launcherProcess) leave() {
	_ = p.cmd.Process.Signal(unix.SIGTERM) // it can have ended
	for end := time.Now().Add(patience); !p.ended() && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *launcherProcess) client() *protocol.Client {
	p.t.Helper()
	c, err := protocol.Dial(p.t.Context(), p.socket)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

// create makes a sandbox that the test's end removes.
func (s *sandboxes) create(c *protocol.Client, create protocol.Create) spec.Info {
	s.t.Helper()
	i, err := c.Create(s.t.Context(), create)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.downIfUp(i.ID) })
	return i
}

// output runs a script in a sandbox and returns what it prints.
func output(t testing.TB, c *protocol.Client, id, script string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := c.Start(t.Context(), id, spec.Command{Args: []string{"sh", "-c", script}}, [3]*os.File{1: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if result, err := p.Wait(t.Context()); err != nil || !result.OK() {
		t.Fatalf("%s: %+v, %v", script, result, err)
	}
	return string(out)
}

// sleeps starts a command that goes on, and waits until it runs.
func sleeps(t testing.TB, c *protocol.Client, id string, detached bool) *protocol.Process {
	t.Helper()
	p, err := c.Start(t.Context(), id,
		spec.Command{Args: []string{"sh", "-c", "echo begun; sleep 1000; echo ended"}, Detached: detached}, [3]*os.File{})
	if err == nil {
		err = p.Started(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestSandboxesOutliveTheirLauncher kills one, and has the next take them up.
func TestSandboxesOutliveTheirLauncher(t *testing.T) {
	s := newSandboxes(t)
	socket := filepath.Join(t.TempDir(), strings.Repeat("long", 30), "launcher.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	first := s.launcher(socket)
	c := first.client()
	s.create(c, protocol.Create{Name: "box"})
	output(t, c, "box", "echo kept > /workspace/file")
	attached := sleeps(t, c, "box", false)
	detached := sleeps(t, c, "box", true)
	if got := run(t, s.command("launcher", "--socket", socket)); got.code == 0 || !strings.Contains(got.stderr, "another launcher listens there") {
		t.Errorf("a second one: %+v", got)
	}
	first.kill()
	if _, err := attached.Wait(t.Context()); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("the attached one: %v", err)
	}
	if _, err := c.Info(t.Context(), "box"); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("the next call: %v", err)
	}

	second := s.launcher(socket)
	c = second.client()
	eventually(t, "what was attached to end", func() bool {
		execs, err := protocol.AskAbout(t.Context(), c, protocol.OpExecs, "box", protocol.None{})
		return err == nil && len(execs) == 1 && execs[0].ID == detached.ID()
	})
	// It has begun to sleep by then, and PID 1 has reaped what was attached.
	eventually(t, "it is as it was", func() bool { return output(t, c, "box", "cat /workspace/file; pgrep -c sleep || true") == "kept\n1\n" })
	again, err := c.Attach(t.Context(), "box", detached.ID())
	if err == nil {
		err = again.Started(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Signal(unix.SIGTERM, true); err != nil {
		t.Error(err)
	}
	if result, err := again.Wait(t.Context()); err != nil || result.Signal != "SIGTERM" {
		t.Errorf("the detached one: %+v, %v", result, err)
	}
	stdout, _ := again.Output()
	if kept, err := io.ReadAll(io.NewSectionReader(stdout, streams.Start, 100)); err != nil || string(kept) != "begun\n" {
		t.Errorf("it has written %q, %v", kept, err)
	}
	if err := c.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	interrupt(t, second.testProcess)
	if exists(socket) {
		t.Error("the socket is still there")
	}
}

// TestALauncherLetsCommandsEnd ends one that is asked to, with commands under way.
func TestALauncherLetsCommandsEnd(t *testing.T) {
	s := newSandboxes(t)
	l := s.launcher(filepath.Join(t.TempDir(), "s"), "--grace", "1m")
	c := l.client()
	s.create(c, protocol.Create{Name: "box"})
	p := sleeps(t, c, "box", false)
	if err := l.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "calls to be refused", func() bool {
		_, err := c.List(t.Context())
		return errors.Is(err, fault.ErrUnavailable)
	})
	if l.ended() {
		t.Fatal("it did not wait")
	}
	if err := p.Signal(unix.SIGTERM, true); err != nil {
		t.Error(err)
	}
	if result, err := p.Wait(t.Context()); err != nil || result.Signal != "SIGTERM" {
		t.Errorf("%+v, %v", result, err)
	}
	if got := l.wait(); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := s.sh("box", "echo up"); got != "up\n" {
		t.Errorf("the sandbox says %q", got)
	}
}

// TestALauncherEndsWhateverItWasPassed: a socket, for one, that is closed only once
// all is sent that nobody takes. Others' sandboxes end as they should meanwhile.
func TestALauncherEndsWhateverItWasPassed(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	for range 3 {
		// A signal, as of a child's end, cuts short that one of them is closed.
		got := s.endPassed(lingering(t), lingering(t), lingering(t))
		if got.code == 0 {
			continue
		}
		if got.code != 1 || !strings.Contains(got.stderr, "do not end and are given up") {
			t.Errorf("%+v", got)
		}
		return
	}
	t.Error("the sockets were closed each time")
}

// endPassed passes a launcher files, which it closes, asks it to end, and returns how
// it did.
func (s *sandboxes) endPassed(files ...*os.File) result {
	t := s.t
	t.Helper()
	l := s.launcher(filepath.Join(t.TempDir(), "s"), "--grace", "0s")
	s.create(l.client(), protocol.Create{Name: "tied", Tied: true})
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: l.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	channel, err := channel.OfConn(conn, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	if err := channel.Send(t.Context(), protocol.Hello{Protocol: protocol.Protocol}.Encode()); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		place := fmt.Sprintf("socket:[%d]", info.Sys().(*syscall.Stat_t).Ino)
		if err := errors.Join(channel.Send(t.Context(), nil, file), file.Close()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the launcher to have the socket", func() bool {
			open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", l.cmd.Process.Pid))
			return err == nil && slices.ContainsFunc(open, func(fd string) bool {
				target, _ := os.Readlink(fd)
				return target == place
			})
		})
	}
	if err := l.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	got := l.wait()
	if exists(filepath.Join(s.root, "@sandboxes/tied")) {
		t.Error("another's sandbox has not ended")
	}
	return got
}

// lingering is a socket whose close(2) does not return until the test is over.
func lingering(t *testing.T) *os.File {
	t.Helper()
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.DialTCP("tcp", nil, listener.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := listener.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	// More waits to be sent than the other end takes, which reads nothing.
	if err := errors.Join(peer.SetReadBuffer(1), conn.SetWriteBuffer(1<<20), conn.SetLinger(1<<20), sendAll(conn)); err != nil {
		t.Fatal(err)
	}
	f, err := conn.File() // another descriptor of it, so that the first one's close returns
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// sendAll sends until there is no room for more to wait.
func sendAll(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var full error
	err = raw.Write(func(fd uintptr) bool {
		for full == nil {
			_, full = unix.Write(int(fd), make([]byte, 1<<16))
		}
		return true
	})
	if err == nil && full != unix.EAGAIN {
		err = full
	}
	return err
}

func TestALauncherRefusesWrongUsage(t *testing.T) {
	s := newSandboxes(t)
	for args, says := range map[string]string{
		"extra":                "takes no arguments.*extra",
		"--grace -1s":          "--grace -1s",
		"--grace soon":         "soon",
		"--mode 0999":          "--mode 0999",
		"--rules /nowhere":     "/nowhere",
		"--fd 1":               "--fd 1: it is one of stdin",
		"--fd 77":              "--fd 77: nobody passed",
		"--fd 3":               "--fd 3: it is no connected socket",
		"--group nosuchgroup":  "--group: group nosuchgroup does not exist",
		"--rules /nope/rules":  "/nope/rules",
		"--socket /nope/x":     "directory /nope of the socket does not exist",
		"--socket /etc/passwd": "/etc/passwd is there and is no socket",
		"--socket /tmp/" + strings.Repeat("x", 120): "x is too long for the name of a socket",
	} {
		cmd := s.command(append([]string{"launcher"}, strings.Fields(args)...)...)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		cmd.ExtraFiles = []*os.File{null}
		got := run(t, cmd)
		null.Close()
		if got.code != 1 || strings.Count(got.stderr, "\n") != 1 || strings.Count(got.stderr, "sandbox-runtime: ") != 1 ||
			!regexp.MustCompile(says).MatchString(got.stderr) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestALauncherOfOneConnection ends with it, and so does what is tied to it.
func TestALauncherOfOneConnection(t *testing.T) {
	s := newSandboxes(t)
	ours, theirs := connected(t)
	cmd := s.command("launcher", "--fd", "3")
	cmd.ExtraFiles = []*os.File{theirs}
	l := start(t, cmd)
	theirs.Close()
	c, err := protocol.NewClient(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.create(c, protocol.Create{Name: "stays"})
	s.create(c, protocol.Create{Name: "tied", Tied: true})
	sleeps(t, c, "tied", false)
	c.Close()
	if got := l.wait(); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if exists(filepath.Join(s.root, "@sandboxes/tied")) || !exists(filepath.Join(s.root, "@sandboxes/stays")) {
		t.Error("not the tied one has ended")
	}
}

func connected(t testing.TB) (*net.UnixConn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours := os.NewFile(uintptr(fds[0]), "ours")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn), os.NewFile(uintptr(fds[1]), "theirs")
}

// TestALauncherOnASocketOfSystemd hands it one as sd_listen_fds(3) describes.
func TestALauncherOnASocketOfSystemd(t *testing.T) {
	s := newSandboxes(t)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// LISTEN_PID is the launcher's own.
	cmd := s.command("launcher")
	cmd.Args = append([]string{"sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.ExtraFiles = []*os.File{file}
	l := &launcherProcess{start(t, cmd), path}
	c := l.client()
	if _, err := c.List(t.Context()); err != nil {
		t.Error(err)
	}
	c.Close()
	interrupt(t, l.testProcess)
	if !exists(path) {
		t.Error("systemd's socket was removed")
	}
}

// TestALauncherRunsFromASealedCopy where there is no overlay mount of its
// program, as its state root is above that.
func TestALauncherRunsFromASealedCopy(t *testing.T) {
	s := newSandboxes(t)
	root := t.TempDir()
	program := filepath.Join(root, "@bin", "sandbox-runtime")
	if err := os.Mkdir(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, binary(t), program)
	cmd := s.command("launcher", "--socket", filepath.Join(root, "s"))
	cmd.Path, cmd.Args[2] = program, root
	l := &launcherProcess{start(t, cmd), filepath.Join(root, "s")}
	eventually(t, "the launcher to listen", func() bool { return strings.Contains(l.stderr(), "listening") })
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", l.cmd.Process.Pid))
	if err != nil || !strings.HasPrefix(exe, "/memfd:") {
		t.Errorf("it runs from %s, %v", exe, err)
	}
	if name := content(t, fmt.Sprintf("/proc/%d/comm", l.cmd.Process.Pid)); name != "sandbox-runtime\n" {
		t.Errorf("its name is %q", name)
	}
	c := l.client()
	i, err := c.Create(t.Context(), protocol.Create{})
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, c, i.ID, "echo hi"); got != "hi\n" {
		t.Errorf("%q", got)
	}
	if err := c.Remove(t.Context(), i.ID); err != nil {
		t.Error(err)
	}
	interrupt(t, l.testProcess)
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestALauncherHoldsAUserToTheRules has another user ask for what it may and may
// not have.
func TestALauncherHoldsAUserToTheRules(t *testing.T) {
	const uid = 1001
	s := newSandboxes(t)
	dir := t.TempDir()
	for above := dir; above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []struct {
		name  string
		owner int
	}{{"mine", uid}, {"mine/roots", 0}, {"outside", uid}} {
		path := filepath.Join(dir, d.name)
		if err := errors.Join(os.Mkdir(path, 0o755), os.Chown(path, d.owner, d.owner)); err != nil {
			t.Fatal(err)
		}
	}
	rules := filepath.Join(dir, "rules.json")
	text := fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":["%s/mine"],"limits":{"memory":"256m"},"sandboxes":1}]}`, uid, dir)
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := s.launcher(filepath.Join(dir, "s"), "--mode", "0666", "--rules", rules)
	s.create(l.client(), protocol.Create{Name: "root"})
	as(t, uid, func(ctx context.Context) error {
		c, err := protocol.Dial(ctx, l.socket)
		if err != nil {
			return err
		}
		defer c.Close()
		for name, create := range map[string]protocol.Create{
			"a workspace outside": {Config: spec.Config{Workspace: dir + "/outside"}},
			"root's workspace":    {Config: spec.Config{Workspace: dir + "/mine/roots"}},
			"the shadow file":     {Config: spec.Config{Binds: []spec.Bind{{Source: "/etc/shadow", Target: "/x"}}}},
			"more memory":         {Config: spec.Config{Limits: spec.Limits{Memory: 512 << 20}}},
			"more system calls":   {Config: spec.Config{Seccomp: "debug"}},
			"the host's pids":     {Config: spec.Config{PID: spec.PIDHost}},
		} {
			if _, err := c.Create(ctx, create); !errors.Is(err, fault.ErrRefused) {
				t.Errorf("%s: %v", name, err)
			}
		}
		i, err := c.Create(ctx, protocol.Create{Name: "box", Config: spec.Config{Workspace: dir + "/mine"}})
		if err != nil {
			return err
		}
		if i.Owner != uid || i.Config.Limits.Memory != 256<<20 {
			t.Errorf("%+v", i)
		}
		output(t, c, "box", "touch /workspace/made")
		if _, err := c.Create(ctx, protocol.Create{}); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("one more: %v", err)
		}
		if _, err := c.Info(ctx, "root"); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("root's: %v", err)
		}
		if _, err := c.Dial(ctx, "root", protocol.Target{Network: "tcp", Address: ":8080"}); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("a port of root's: %v", err)
		}
		dialOwn(ctx, t, c, "box")
		return c.Remove(ctx, "box")
	})
	var st unix.Stat_t
	if err := unix.Stat(dir+"/mine/made", &st); err != nil || st.Uid != uid {
		t.Errorf("the file's owner is %d, %v", st.Uid, err)
	}
	as(t, uid+1, func(ctx context.Context) error {
		if _, err := protocol.Dial(ctx, l.socket); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("without a rule: %v", err)
		}
		return nil
	})
	interrupt(t, l.testProcess)
}

// dialOwn connects to a port of a client's own sandbox, before and after a server is there.
func dialOwn(ctx context.Context, t *testing.T, c *protocol.Client, id string) {
	t.Helper()
	to := protocol.Target{Network: "tcp", Address: "localhost:8080"}
	if _, err := c.Dial(ctx, id, to); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a port without a server: %v", err)
	}
	server := "import socket\ns = socket.create_server(('127.0.0.1', 8080))\nc, _ = s.accept()\nc.sendall(b'hello')"
	p, err := c.Start(ctx, id, spec.Command{Args: []string{"python3", "-c", server}}, [3]*os.File{})
	if err != nil {
		t.Errorf("start a server: %v", err)
		return
	}
	defer p.Close()
	eventually(t, "the port answers", func() bool {
		conn, err := c.Dial(ctx, id, to)
		if err != nil {
			return false
		}
		defer conn.Close()
		word, err := io.ReadAll(conn)
		return err == nil && string(word) == "hello"
	})
}

// as calls f on a thread that is another user's.
func as(t *testing.T, uid int, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer close(done)      // also where f ends the test
		runtime.LockOSThread() // and never unlocked: the thread ends here
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f(ctx)
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A launcher that goes on has nothing of a sandbox that is gone: neither the Go
// runtime nor libcontainer leaves a thread in its mount namespace, which would keep
// its image and a loop device.
func TestLauncherKeepsNoImageInUse(t *testing.T) {
	s := newSandboxes(t)
	c := s.launcher(filepath.Join(t.TempDir(), "s")).client()
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for range 8 {
				i, err := c.Create(t.Context(), protocol.Create{})
				if err != nil {
					t.Error(err)
					return
				}
				if here := images(t); i.Config.Storage != spec.StorageDisk || !strings.Contains(strings.Join(here, "\n"), "loop device of ") {
					t.Errorf("storage %q, %q; %q", i.Config.Storage, i.Notes, here)
				}
				if err := c.Remove(t.Context(), i.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	eventually(t, "no image and no loop device is left", func() bool { return len(images(t)) == 0 })
}

// images are those there are, and their loop devices.
func images(t *testing.T) []string {
	t.Helper()
	all := host{}
	if err := addImages(all); err != nil {
		t.Error(err)
	}
	return slices.Collect(maps.Keys(all))
}

// A client of a launcher that a signal has stopped ends, and the error names the process.
func TestAStoppedLauncherIsNamed(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	socket := filepath.Join(t.TempDir(), "socket")
	l := s.launcher(socket)
	pid := l.cmd.Process.Pid
	if err := l.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	got := run(t, exec.Command(binary(t), "list", "--socket", socket))
	if err := l.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf("launcher %s is not available: its process %d is stopped; continue it with: kill -CONT %[2]d", socket, pid)
	if got.code != 1 || !strings.Contains(got.stderr, want) {
		t.Errorf("%+v, want %q", got, want)
	}
}
