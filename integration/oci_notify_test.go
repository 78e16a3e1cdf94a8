package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A serviceManager is the host's end of sd_notify(3).
type serviceManager struct {
	path string
	conn *net.UnixConn
}

func newServiceManager(t testing.TB) *serviceManager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &serviceManager{path, conn}
}

// untilBarrier returns the messages before sd_notify_barrier(3), and answers
// that, for which the sender waits.
func (m *serviceManager) untilBarrier(t testing.TB) (messages []string) {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := m.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			t.Fatalf("%v after %q", err, messages)
		}
		if string(buf[:n]) != "BARRIER=1" {
			messages = append(messages, string(buf[:n]))
			continue
		}
		control, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(control) != 1 {
			t.Fatalf("barrier: %d control messages, %v", len(control), err)
		}
		fds, err := unix.ParseUnixRights(&control[0])
		if err != nil || len(fds) != 1 {
			t.Fatalf("barrier: descriptors %v, %v", fds, err)
		}
		unix.Close(fds[0])
		return messages
	}
}

// silent says that nothing has been sent.
func (m *serviceManager) silent(t testing.TB) bool {
	t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := m.conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// becomesReady says so in the name of the container: on the socket that its
// environment names, as its file system shows it.
func becomesReady(t testing.TB, pid int) {
	t.Helper()
	eventually(t, "the container has its socket", func() bool {
		for e := range strings.SplitSeq(content(t, fmt.Sprintf("/proc/%d/environ", pid)), "\x00") {
			if e == "NOTIFY_SOCKET="+socketInside {
				_, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, socketInside))
				return err == nil
			}
		}
		return false
	})
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: fmt.Sprintf("/proc/%d/root%s", pid, socketInside), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, message := range []string{"STATUS=starting\nMAINPID=1", "READY=1"} {
		if _, err := conn.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
	}
}

const socketInside = "/run/notify/notify.sock"

// command is the runtime's with the service manager in its environment.
func (m *serviceManager) command(r *ociRuntime, args ...string) *exec.Cmd {
	cmd := r.command(args...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.path)
	return cmd
}

func notifyBundle(t testing.TB, args ...string) *bundle {
	t.Helper()
	root := newBusyboxRoot(t) // gets a mount point
	return newBundle(t, args, func(s *specs.Spec) { s.Root.Path = root })
}

// Of what a container says READY alone reaches the service manager, with the
// process to watch as the runtime knows it; start comes back after that.
func TestStartTellsReadiness(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		m := newServiceManager(t)
		r.compare(run(t, m.command(r, "create", "--bundle", notifyBundle(t, "sleep", "1000").dir, "c")), result{}, []string{"create"})
		pid := r.state("c").PID
		p := start(t, m.command(r, "start", "c"))
		r.waitUntil("c", "running")
		r.awaitProgram(pid)
		if p.ended() || !m.silent(t) {
			t.Errorf("start: ended %v before the container was ready", p.ended())
		}
		becomesReady(t, pid)
		if got, want := m.untilBarrier(t), []string{"READY=1\n", fmt.Sprintf("MAINPID=%d\n", pid)}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		if got := p.wait(); got != (result{}) {
			t.Errorf("start: %+v", got)
		}
	})
}

func TestStartDoesNotWaitForTheDead(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		m := newServiceManager(t)
		r.compare(run(t, m.command(r, "create", "--bundle", notifyBundle(t, "true").dir, "c")), result{}, []string{"create"})
		r.compare(run(t, m.command(r, "start", "c")), result{}, []string{"start"})
		if !m.silent(t) {
			t.Error("readiness of a program that never said so")
		}
	})
}

// Detached, the process to watch is the container's; in the foreground the
// runtime's own, which ends with the container's status.
func TestRunTellsReadiness(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		for _, detached := range []bool{true, false} {
			m := newServiceManager(t)
			pidFile := filepath.Join(t.TempDir(), "pid")
			args := []string{"run", "--pid-file", pidFile, "--bundle", notifyBundle(t, "sleep", "1000").dir}
			if detached {
				args = append(args, "--detach")
			}
			p := start(t, m.command(r, append(args, "c")...))
			pid := pidIn(t, pidFile)
			r.awaitProgram(pid)
			becomesReady(t, pid)
			watched := pid
			if !detached {
				watched = p.cmd.Process.Pid
			}
			if got, want := m.untilBarrier(t), []string{"READY=1\n", fmt.Sprintf("MAINPID=%d\n", watched)}; !slices.Equal(got, want) {
				t.Errorf("detached %v: told %q, want %q", detached, got, want)
			}
			if detached {
				r.compare(p.wait(), result{}, args)
				r.run("delete", "--force", "c")
				continue
			}
			r.run("kill", "c", "KILL")
			r.compare(p.wait(), result{code: 137}, args)
		}
	})
}
