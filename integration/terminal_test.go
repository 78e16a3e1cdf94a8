package integration

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// A terminal is the master's side of a pty, with all that came out of it.
type terminal struct {
	master *os.File
	closed chan struct{} // nobody has the slave any more: seen is complete
	mu     sync.Mutex    // guards seen
	seen   bytes.Buffer
}

// newTerminal reads from the master until the last slave is closed.
func newTerminal(t testing.TB, master *os.File) *terminal {
	t.Helper()
	term := &terminal{master: master, closed: make(chan struct{})}
	go func() {
		defer close(term.closed)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf) // EIO when the last slave closes
			term.mu.Lock()
			term.seen.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		master.Close()
		<-term.closed
	})
	return term
}

func (term *terminal) output() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.seen.String()
}

func (term *terminal) shows(t testing.TB, text string) {
	t.Helper()
	eventually(t, "terminal shows "+text, func() bool {
		select {
		case <-term.closed:
			if !strings.Contains(term.output(), text) {
				t.Fatalf("terminal closed, without %q: %q", text, term.output())
			}
		default:
		}
		return strings.Contains(term.output(), text)
	})
}

func (term *terminal) typeIn(t testing.TB, text string) {
	t.Helper()
	if _, err := term.master.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// onTerminal starts the command with a new pty as its controlling terminal and
// all of its stdio, as a person's shell would.
func onTerminal(t testing.TB, cmd *exec.Cmd) (*terminal, *testProcess) {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	term := newTerminal(t, interruptible(t, master))
	return term, start(t, cmd)
}

// interruptible takes over a terminal, so that Close ends a read from it and hangs up.
func interruptible(t testing.TB, f *os.File) *os.File {
	t.Helper()
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// A consoleSocket is where a runtime sends a container's terminal.
type consoleSocket struct{ *fdSocket }

func listenForConsole(t testing.TB) *consoleSocket {
	t.Helper()
	return &consoleSocket{listenForFDs(t)}
}

// receive takes the pty's master from the next connection.
func (s *consoleSocket) receive(t testing.TB) *terminal {
	t.Helper()
	_, files := s.fdSocket.receive(t)
	if len(files) != 1 {
		t.Fatalf("console socket: %d descriptors", len(files))
	}
	return newTerminal(t, interruptible(t, files[0]))
}
