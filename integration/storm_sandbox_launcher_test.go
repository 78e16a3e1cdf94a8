package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A launcher is killed at some of its failpoints while a client makes a sandbox,
// runs commands and removes it: the client is told, and what is left is removed
// by commands that know no more than the name.
func TestLauncherKilledAtFailpoints(t *testing.T) {
	s := newSandboxStorm(t)
	before := s.host()
	undisturbed := s.killLauncherAt(t, before, 0)
	const wanted = 60
	every := max(1, len(undisturbed.Points)/wanted)
	kills, chosen := 0, someFailpoints(len(undisturbed.Points), every)
	for _, n := range chosen {
		if t.Failed() {
			break
		}
		if s.killLauncherAt(t, before, n).Killed {
			kills++
		}
	}
	if kills < len(chosen)/2 {
		t.Errorf("killed %d times only", kills)
	}
	t.Logf("%d failpoints, %d kills", len(undisturbed.Points), kills)
}

func (s *sandboxStorm) killLauncherAt(t *testing.T, before host, n int) failpoint.Trace {
	t.Helper()
	dir, err := os.MkdirTemp("", "l") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "socket")
	listens, dead := context.WithCancel(t.Context())
	var client sync.WaitGroup
	var clientErr error
	client.Go(func() { clientErr = useLauncher(listens, t.Context(), socket) })
	trace, err := failpoint.Run(s.command("launcher", "--socket", socket), n, patience)
	dead()
	told := time.Now()
	client.Wait()
	if took := time.Since(told); took > patience/2 {
		t.Errorf("the client notices that its launcher is dead after %v", took)
	}
	if err != nil {
		t.Fatal(err)
	}
	at := "undisturbed"
	if trace.Killed {
		at = fmt.Sprintf("killed at %d, %v", n, trace.Points[n-1])
	} else if clientErr != nil || trace.Status.ExitStatus() != 0 {
		t.Errorf("%s: status %#x, and the client: %v", at, trace.Status, clientErr)
	}
	s.pruned(at)
	s.isBack(at, before)
	return trace
}

// useLauncher is a client of the launcher, which it ends. It waits for it as long
// as the first context lasts.
func useLauncher(listens, ctx context.Context, socket string) error {
	return withLauncher(listens, socket, func(m *sandbox.Manager) error { return useManager(ctx, m) })
}

// withLauncher is a client of a launcher. It waits for the launcher as long as the context lasts, and ends
// the launcher after use.
func withLauncher(listens context.Context, socket string, use func(*sandbox.Manager) error) (err error) {
	stop, err := awaitLauncher(listens, socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return use(m)
}

// killLauncher has a client use a launcher that is killed at its n-th failpoint, if n is not 0.
func (s *sandboxes) killLauncher(t *testing.T, n int, flags []string, use func(*sandbox.Manager) error) failpoint.Trace {
	t.Helper()
	trace, err, clientErr := s.traceLauncher(t, flags, use, func(cmd *exec.Cmd) (failpoint.Trace, error) {
		return failpoint.Run(cmd, n, patience)
	})
	if err == nil && !trace.Killed {
		err = clientErr
	}
	if err != nil {
		t.Fatalf("killed at %d: %v", n, err)
	}
	return trace
}

// traceLauncher has a client use a launcher that is traced. It returns the error of the tracer, and that
// of the client.
func (s *sandboxes) traceLauncher(t *testing.T, flags []string, use func(*sandbox.Manager) error,
	run func(*exec.Cmd) (failpoint.Trace, error),
) (trace failpoint.Trace, err, clientErr error) {
	t.Helper()
	socket := socketOfTest(t)
	listens, dead := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() { clientErr = withLauncher(listens, socket, use) })
	trace, err = run(s.command(append([]string{"launcher", "--socket", socket}, flags...)...))
	dead()
	client.Wait()
	return trace, err, clientErr
}

func useManager(ctx context.Context, m *sandbox.Manager) error {
	box, err := m.Create(ctx, sandbox.Config{}, sandbox.Named("c"))
	if err != nil {
		return err
	}
	_, err = box.Start(ctx, sandbox.Command{Args: []string{"sleep", "1000"}, Detached: true})
	if err != nil {
		return err
	}
	if r, err := box.Run(ctx, "(setsid sleep 1000 &); echo out"); err != nil || string(r.Stdout) != "out\n" {
		return fmt.Errorf("%+v, %w", r, err)
	}
	r, err := box.Exec(ctx, sandbox.Command{Args: []string{"sleep", "1000"}, Timeout: 10 * time.Millisecond})
	if err != nil || r.Status != sandbox.StatusTimedOut {
		return fmt.Errorf("%+v, %w", r, err)
	}
	return box.Close()
}

// awaitLauncher returns when a launcher listens; stop ends it.
func awaitLauncher(ctx context.Context, socket string) (stop func() error, err error) {
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			defer conn.Close()
			pid, err := peerOf(conn.(*net.UnixConn))
			return func() error { return unix.Kill(pid, unix.SIGTERM) }, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}

// peerOf is the process that listens at the other end.
func peerOf(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); optErr == nil {
			pid = int(cred.Pid)
		}
	})
	return pid, errors.Join(err, optErr)
}
