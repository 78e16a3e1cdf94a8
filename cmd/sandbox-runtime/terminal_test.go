package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// openTerminal makes a pseudo-terminal of 40 rows and 100 columns; reads of the
// master have an end.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}); err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "master")
	if err := master.SetDeadline(time.Now().Add(testhost.Patience)); err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

// onTerminal starts cmd with the terminal as its stdio and controlling one.
func onTerminal(t *testing.T, cmd *exec.Cmd, slave *os.File) {
	t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
}

// expect reads until the text has come.
func expect(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	got, buf := "", make([]byte, 1024)
	for !strings.Contains(got, text) {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatalf("%q, then %v; want %q", got, err, text)
		}
		got += string(buf[:n])
	}
	return got
}

func TestForegroundTerminal(t *testing.T) {
	h := newHost(t)
	id := h.running()
	other := newHost(t)
	for name, cmd := range map[string]*exec.Cmd{
		"exec": h.command("exec", "--tty", id, "probe", "tty"),
		"run":  other.command("run", "-b", other.bundle(terminal, "tty"), other.id()),
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := openTerminal(t)
			before, err := term.GetState(int(slave.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			onTerminal(t, cmd, slave)
			expect(t, master, "tty 111 ")
			if _, err := master.Write([]byte("typed\r")); err != nil { // \r: raw on this side, the container's makes it \n
				t.Fatal(err)
			}
			expect(t, master, "line typed\r\n")
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != 3 {
				t.Errorf("status %d", got)
			}
			after, err := term.GetState(int(slave.Fd()))
			if err != nil || *after != *before {
				t.Errorf("terminal not restored (%v)", err)
			}
		})
	}
	other.nothingLeft()
}

func TestTerminalFollowsTheCallersSize(t *testing.T) {
	h := newHost(t)
	master, slave := openTerminal(t)
	// The size is set once the process runs, so this one asks late.
	cmd := h.command("run", "-b", h.bundle(terminal, "sizes"), h.id())
	onTerminal(t, cmd, slave)
	expect(t, master, "40x100")
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 11, Col: 22}); err != nil {
		t.Fatal(err)
	}
	expect(t, master, "11x22")
}

func TestTerminalLosesNoOutput(t *testing.T) {
	h := newHost(t)
	id := h.running()
	for range 5 {
		master, slave := openTerminal(t)
		cmd := h.command("exec", "--tty", id, "probe", "flood")
		onTerminal(t, cmd, slave)
		expect(t, master, "the end\r\n")
		_ = cmd.Wait()
	}
}

func TestTerminalNeedsOne(t *testing.T) {
	h := newHost(t)
	bundle := h.bundle(terminal, "tty")
	cmd := h.command("run", "-b", bundle, h.id())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no controlling terminal either
	r := h.finish(cmd)
	if r.code != 1 || !strings.Contains(r.stderr, "no terminal") {
		t.Errorf("%+v", r)
	}
	h.nothingLeft()
}

func TestConsoleSocketReceivesTheTerminal(t *testing.T) {
	h := newHost(t)
	path := filepath.Join(h.dir, "console")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	withSize := func(s *specs.Spec) {
		s.Process.Terminal = true
		s.Process.ConsoleSize = &specs.Box{Height: 12, Width: 34}
	}
	h.must("create", "--console-socket", path, "-b", h.bundle(withSize, "tty"), h.id())
	talk := func() {
		fd := acceptFD(t, l)
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
		dup, err := unix.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		master := os.NewFile(uintptr(dup), "master")
		defer master.Close()
		if err := master.SetDeadline(time.Now().Add(testhost.Patience)); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(path, h.dir) {
			h.run("start", h.id())
		}
		expect(t, master, "tty 111 ")
		if _, err := master.Write([]byte("typed\n")); err != nil {
			t.Fatal(err)
		}
		expect(t, master, "line typed\r\n")
	}
	talk()

	h2 := newHost(t)
	id := h2.running()
	h2.must("exec", "--tty", "--detach", "--console-socket", path, id, "probe", "tty")
	talk()
}
