package frontend

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// terminalStreams gives the process a terminal of its own and copies between
// it and the caller's. The process never holds the caller's terminal, into
// which it could push input (TIOCSTI).
//
// As with runc, the process's terminal passes newlines on as they are, so that redirected
// output has no "\r". The caller's terminal makes "\r\n" of them (ONLCR and OPOST,
// termios(3)).
type terminalStreams struct {
	host          console.Console
	raw           bool     // host has to be reset
	socket, child *os.File // a pair over which the container's setup sends the master
	gate          *gate    // nil for an init: it waits for its release, or is restored

	receiving sync.WaitGroup // guards the two fields below
	master    *os.File
	err       error

	copying sync.WaitGroup
}

// newTerminalStreams with hold keeps the process from its command until started is ready.
func newTerminalStreams(hold bool) (*terminalStreams, error) {
	host, err := hostTerminal()
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	t := &terminalStreams{
		host:   host,
		socket: os.NewFile(uintptr(fds[0]), "console"),
		child:  os.NewFile(uintptr(fds[1]), "console"),
	}
	if hold {
		if t.gate, err = newGate(); err != nil {
			t.finish()
			return nil, err
		}
	}
	return t, nil
}

// hostTerminal finds the caller's terminal behind whichever stream has not been
// redirected, or the controlling one.
func hostTerminal() (console.Console, error) {
	for _, f := range []*os.File{os.Stderr, os.Stdout, os.Stdin} {
		if c, err := console.ConsoleFromFile(f); err == nil {
			return c, nil
		}
	}
	f, err := os.Open("/dev/tty")
	if err != nil {
		return nil, errNoTerminal
	}
	c, err := console.ConsoleFromFile(f)
	if err != nil {
		f.Close()
		return nil, errNoTerminal
	}
	return c, nil
}

// attach also begins to receive the console.
func (t *terminalStreams) attach(p *container.Process) {
	p.ConsoleSocket, p.Ready = t.child, t.ready
	if t.gate != nil {
		t.gate.to, p.PidfdSocket = p.PidfdSocket, t.gate.theirs
	}
	t.receiving.Go(func() { t.err = t.receive() })
}

// ready returns when the console of an init is set up. The init then waits for its release: it needs no
// gate, and so no descriptor beyond those of runc's.
func (t *terminalStreams) ready() error {
	t.receiving.Wait()
	return t.err
}

// receive sets the console up, and lets the process go on.
func (t *terminalStreams) receive() error {
	if t.gate != nil {
		defer t.gate.ours.Close() // after an error the process must not wait
	}
	fd, err := ReceiveFD(t.socket)
	if err != nil {
		return fmt.Errorf("receive console: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("set console up: %w", err)
	}
	t.master = os.NewFile(uintptr(fd), "console") // non-blocking: knows deadlines
	if err := console.ClearONLCR(uintptr(fd)); err != nil {
		return fmt.Errorf("set console up: %w", err)
	}
	if t.gate != nil {
		return t.gate.open()
	}
	return nil
}

func (t *terminalStreams) started() error {
	t.closeTheirs()
	if err := t.ready(); err != nil {
		return err
	}
	if err := t.host.SetRaw(); err != nil {
		return fmt.Errorf("make terminal raw: %w", err)
	}
	t.raw = true
	go func() { _, _ = io.Copy(t.master, os.Stdin) }() // ends with the program
	t.copying.Go(func() { _ = streams.CopyTerminal(os.Stdout, t.master) })
	return nil
}

// closeTheirs closes the process's ends. If there is no process, receive ends.
func (t *terminalStreams) closeTheirs() {
	t.child.Close()
	if t.gate != nil {
		t.gate.theirs.Close()
	}
}

func (t *terminalStreams) resize() {
	size, err := unix.IoctlGetWinsize(int(t.host.Fd()), unix.TIOCGWINSZ)
	if err != nil || t.master == nil {
		return
	}
	// File.Fd would make it blocking.
	_ = descriptor.Use(t.master, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size) })
}

func (t *terminalStreams) finish() {
	t.closeTheirs()
	t.receiving.Wait()
	if t.gate != nil {
		t.gate.close()
	}
	if t.master != nil {
		// Processes left behind may hold the terminal open: do not wait for its end, read
		// the present output.
		_ = t.master.SetReadDeadline(time.Now())
		t.copying.Wait()
		t.master.Close()
	}
	if t.raw {
		_ = t.host.Reset()
	}
	t.socket.Close()
}

// ReceiveFD takes one descriptor from a stream socket (unix(7), SCM_RIGHTS).
func ReceiveFD(socket *os.File) (int, error) {
	_, fd, err := receiveFile(socket)
	return fd, err
}

// receiveFile takes one descriptor and the text beside it.
func receiveFile(socket *os.File) (text []byte, fd int, err error) {
	text = make([]byte, 4096) // the file's name comes along as data
	oob := make([]byte, unix.CmsgSpace(4))
	length, n, _, _, err := unix.Recvmsg(int(socket.Fd()), text, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, -1, fmt.Errorf("recvmsg: %w", err)
	}
	fds, err := descriptor.Received(oob[:n])
	if err == nil && len(fds) != 1 {
		err = errors.New("recvmsg: no descriptor came")
	}
	if err != nil {
		descriptor.CloseFD(fds...)
		return nil, -1, err
	}
	return text[:length], fds[0], nil
}
