package frontend

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// A gate holds a process between its console and its command. Without the gate the command
// could write before this program has set the console up.
//
// The setup of a process sends a pidfd right after the console, and waits until the socket
// takes the pidfd (libcontainer v1.5.2, standard_init_linux.go and setns_init_linux.go,
// Init). The socket of a gate is full until open. A broken receiver of the pidfd ends the
// command only then: the command may have begun.
type gate struct {
	ours, theirs *os.File
	filling      int64    // bytes in the socket
	to           *os.File // receives the pidfd; nil: nobody asked for the pidfd
}

func newGate() (_ *gate, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	g := &gate{ours: os.NewFile(uintptr(fds[0]), "gate"), theirs: os.NewFile(uintptr(fds[1]), "gate")}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	// The kernel makes the least possible size of it (socket(7)).
	if err := unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
		return nil, fmt.Errorf("setsockopt SO_SNDBUF: %w", err)
	}
	for bytes := make([]byte, 4096); ; {
		n, err := unix.SendmsgN(fds[1], bytes, nil, nil, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return g, nil
		}
		if err != nil {
			return nil, fmt.Errorf("sendmsg: %w", err)
		}
		g.filling += int64(n)
	}
}

// open lets the process go on.
func (g *gate) open() error {
	if _, err := io.CopyN(io.Discard, g.ours, g.filling); err != nil {
		return err
	}
	text, pidfd, err := receiveFile(g.ours)
	if err != nil {
		return fmt.Errorf("receive pidfd: %w", err)
	}
	defer unix.Close(pidfd)
	if g.to == nil {
		return nil
	}
	if err := unix.Sendmsg(int(g.to.Fd()), text, unix.UnixRights(pidfd), nil, 0); err != nil {
		return fmt.Errorf("send pidfd: %w", err)
	}
	return nil
}

func (g *gate) close() {
	g.ours.Close()
	g.theirs.Close()
}
