package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// sandbox is a real one around a real agent: namespaces, a user namespace's
// range of ids, and what inside_test.go does before it executes the agent.
type sandbox struct {
	*Conn
	cmd *exec.Cmd
}

type option func(*exec.Cmd)

func setting(name, value string) option {
	return func(c *exec.Cmd) { c.Env = append(c.Env, name+"="+value) }
}

// start starts process 1 and returns before it is known to serve.
func start(t testing.TB, options ...option) *sandbox {
	t.Helper()
	testhost.NeedRoot(t, "to map a range of ids into a user namespace")
	executable, err := Executable()
	if err != nil {
		t.Fatal(err)
	}
	defer executable.Close()
	conn, guest, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	errorsOut, errorsIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer errorsIn.Close()

	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 30, Size: 1 << 16}}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVariable + "=init"}
	cmd.ExtraFiles = []*os.File{executable, guest, nil, nil, nil, nil, errorsIn}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
		Setsid:     true,
	}
	for _, o := range options {
		o(cmd)
	}
	err = cmd.Start()
	for _, f := range cmd.ExtraFiles[2:6] {
		f.Close() // the agent's alone; nil may be closed, too
	}
	if err != nil {
		conn.Close()
		t.Fatal(err)
	}
	s := &sandbox{conn, cmd}
	t.Cleanup(func() {
		errorsIn.Close()
		s.Close()
		cmd.Process.Kill()
		cmd.Wait()
		if text, _ := io.ReadAll(errorsOut); len(text) > 0 {
			t.Errorf("init of the sandbox: %s", text)
		}
		errorsOut.Close()
	})
	return s
}

// listening gives the agent a listener at path.
func listening(t testing.TB, path string) option {
	t.Helper()
	f, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *exec.Cmd) { c.ExtraFiles[2] = f }
}

// openListening is open, with a listener at the path it returns.
func openListening(t testing.TB, options ...option) (*sandbox, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	return open(t, append(options, listening(t, path))...), path
}

// connect is another host.
func (s *sandbox) connect(t testing.TB, path string) *sandbox {
	t.Helper()
	c, err := Dial(within(t, testhost.Patience), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &sandbox{c, s.cmd}
}

// open is start, and waits until the agent serves.
func open(t testing.TB, options ...option) *sandbox {
	t.Helper()
	s := start(t, options...)
	if err := s.Ready(within(t, testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	return s
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// exits holds that the agent ends with the status that names a stage.
func (s *sandbox) exits(t testing.TB, name string, at Stage) {
	t.Helper()
	s.cmd.Wait()
	if status := s.cmd.ProcessState.ExitCode(); status != int(at) {
		t.Errorf("%s: exit status %d, want %d", name, status, at)
	}
}

// command is the user 1000 at /, with a PATH.
func command(args ...string) Command {
	return Command{Args: args, Env: []string{"PATH=/usr/bin"}, Dir: "/", UID: 1000, GID: 1000}
}

// run runs a command to its end and returns what it wrote.
func (s *sandbox) run(t testing.TB, c Command) (string, Exit) {
	t.Helper()
	out, exit, err := s.try(within(t, testhost.Patience), c)
	if err != nil {
		t.Fatal(err)
	}
	return out, exit
}

func (s *sandbox) try(ctx context.Context, c Command) (string, Exit, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", Exit{}, err
	}
	defer r.Close()
	c.Stdout, c.Stderr = w, w
	p, err := s.Start(ctx, c)
	w.Close()
	if err != nil {
		return "", Exit{}, err
	}
	defer p.Close()
	var out bytes.Buffer
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(&out, r)
		read <- err
	}()
	exit, err := p.Wait(ctx)
	// What it left behind may hold the pipe open: only what is there by now, be it
	// that the copying came to none of it.
	r.SetReadDeadline(time.Now())
	if reading := <-read; !errors.Is(reading, os.ErrDeadlineExceeded) {
		return out.String(), exit, errors.Join(err, reading)
	}
	rest, reading := readAvailable(r)
	out.Write(rest)
	return out.String(), exit, errors.Join(err, reading)
}

// readAvailable reads what a pipe holds, and waits for no more.
func readAvailable(r *os.File) ([]byte, error) {
	raw, err := r.SyscallConn()
	if err != nil {
		return nil, err
	}
	var all []byte
	part := make([]byte, 1<<16)
	controlling := raw.Control(func(fd uintptr) {
		n := 1
		for n > 0 || err == unix.EINTR {
			n, err = unix.Read(int(fd), part)
			all = append(all, part[:max(n, 0)]...)
		}
	})
	if err == unix.EAGAIN {
		err = nil
	}
	return all, errors.Join(controlling, err)
}

// mustRun runs a command that has to succeed.
func (s *sandbox) mustRun(t testing.TB, c Command) string {
	t.Helper()
	out, exit := s.run(t, c)
	if exit.Status != 0 {
		t.Fatalf("%q: status %#x, output %q", c.Args, exit.Status, out)
	}
	return strings.TrimSuffix(out, "\n")
}

// serves fails unless the agent still does what it is for.
func (s *sandbox) serves(t testing.TB) {
	t.Helper()
	if got := s.mustRun(t, command("sh", "-c", "echo alive")); got != "alive" {
		t.Errorf("after all this: %q, want alive", got)
	}
}

// begin starts a command and returns what it writes as a file to read from.
func (s *sandbox) begin(t testing.TB, c Command) (*Process, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	c.Stdout, c.Stderr = w, w
	p, err := s.Start(within(t, testhost.Patience), c)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, r
}

// report runs the probe and returns what it says of itself.
func (s *sandbox) report(t testing.TB, c Command) selfReport {
	t.Helper()
	var got selfReport
	out := s.mustRun(t, c)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return got
}

// inside lists the processes there are, with the one that lists.
func (s *sandbox) inside(t testing.TB) []seenProcess {
	t.Helper()
	c := asProbe("report")
	c.UID, c.GID = 3000, 3000
	return s.report(t, c).Processes
}
