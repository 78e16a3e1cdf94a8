package frontend

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// terminalStreams gives the process a terminal of its own and copies between
// it and the caller's. The process never holds the caller's terminal, into
// which it could push input (TIOCSTI).
type terminalStreams struct {
	host          *os.File
	socket, child *os.File // a pair over which the container's setup sends the master
	master        *os.File
	restore       *term.State
	copying       sync.WaitGroup
}

func newTerminalStreams() (*terminalStreams, error) {
	host, err := hostTerminal()
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	return &terminalStreams{
		host:   host,
		socket: os.NewFile(uintptr(fds[0]), "console"),
		child:  os.NewFile(uintptr(fds[1]), "console"),
	}, nil
}

// hostTerminal finds the caller's terminal behind whichever stream has not been
// redirected, or the controlling one.
func hostTerminal() (*os.File, error) {
	for _, f := range []*os.File{os.Stderr, os.Stdout, os.Stdin} {
		if term.IsTerminal(int(f.Fd())) {
			return f, nil
		}
	}
	f, err := os.Open("/dev/tty")
	if err != nil {
		return nil, errNoTerminal
	}
	return f, nil
}

func (t *terminalStreams) attach(p *container.Process) { p.ConsoleSocket = t.child }

func (t *terminalStreams) started() error {
	t.child.Close()
	fd, err := ReceiveFD(t.socket)
	if err != nil {
		return fmt.Errorf("receive console: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	t.master = os.NewFile(uintptr(fd), "console") // non-blocking: knows deadlines
	if t.restore, err = term.MakeRaw(int(t.host.Fd())); err != nil {
		return fmt.Errorf("make terminal raw: %w", err)
	}
	go func() { _, _ = io.Copy(t.master, os.Stdin) }() // ends with the program
	t.copying.Go(func() { _, _ = io.Copy(os.Stdout, t.master) })
	return nil
}

func (t *terminalStreams) resize() {
	size, err := unix.IoctlGetWinsize(int(t.host.Fd()), unix.TIOCGWINSZ)
	if err != nil || t.master == nil {
		return
	}
	t.control(func(fd int) { _ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size) })
}

// control runs f on the master's descriptor; File.Fd would make it blocking.
func (t *terminalStreams) control(f func(fd int)) {
	if conn, err := t.master.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { f(int(fd)) })
	}
}

func (t *terminalStreams) finish() {
	if t.master != nil {
		// Processes left behind may hold the terminal open: do not wait for its end, read
		// the present output.
		_ = t.master.SetReadDeadline(time.Now())
		t.copying.Wait()
		t.control(drainTo(os.Stdout))
		t.master.Close()
	}
	if t.restore != nil {
		_ = term.Restore(int(t.host.Fd()), t.restore)
	}
	t.socket.Close()
	t.child.Close()
}

// drainTo copies the present output of a non-blocking terminal. The buffer is smaller than
// the bound; a process that writes on and on does not keep us here.
func drainTo(w io.Writer) func(fd int) {
	return func(fd int) {
		buf := make([]byte, 32<<10)
		for range 32 {
			n, err := unix.Read(fd, buf)
			if err != nil || n <= 0 {
				return
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// ReceiveFD takes one descriptor from a stream socket (unix(7), SCM_RIGHTS).
func ReceiveFD(socket *os.File) (int, error) {
	name := make([]byte, 4096) // the file's name comes along as data
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), name, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("recvmsg: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, fmt.Errorf("recvmsg: no descriptor came")
}
