package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Conn is the host's end of one agent's control socket.
//
// A Conn is made before its agent runs; Ready returns once the agent serves,
// and any number of commands may then be started, at once too. Close ends the
// agent and with it everything in its pid namespace; so does the end of the
// host's process.
type Conn struct {
	control *socket
	// sending is held by the one that sends. A channel, for a context to
	// interrupt the wait for it.
	sending chan struct{}
}

// New returns a Conn and the socket to give to the agent as descriptor 4. The
// caller closes guest once the agent has it: until then a dead agent is not
// noticed.
func New() (c *Conn, guest *os.File, err error) {
	control, theirs, err := newSocket("agent-control")
	if err != nil {
		return nil, nil, err
	}
	c = &Conn{control: control, sending: make(chan struct{}, 1)}
	return c, os.NewFile(uintptr(theirs), "agent-control-guest"), nil
}

// Close closes the control socket. Commands that still run are killed with the
// agent. It is safe to call twice.
func (c *Conn) Close() error {
	if err := c.control.close(); err != nil {
		return fmt.Errorf("close the agent's control socket: %w", err)
	}
	return nil
}

// Ready waits until the agent serves and checks that it speaks this package's
// protocol. It is called once. The error is ErrGone if the agent ended without
// a word, and names the step and the errno if it refused to serve.
func (c *Conn) Ready(ctx context.Context) error {
	e, _, err := c.control.receive(ctx, false)
	switch {
	case errors.Is(err, io.EOF):
		err = ErrGone
	case err != nil:
	case e.kind == eventFatal:
		err = fmt.Errorf("%s: %w", e.stage, e.errno)
	case e.kind != eventHello:
		err = fmt.Errorf("event %d in place of its version", e.kind)
	case e.version != protocolVersion:
		err = fmt.Errorf("protocol version %d, want %d", e.version, protocolVersion)
	}
	if err != nil {
		return fmt.Errorf("start the sandbox's agent: %w", err)
	}
	return nil
}

// Start starts a command, and returns once it has been executed. The error is a
// *StartError where the command is at fault or a limit was hit, ErrGone where
// the agent is. If ctx ends first, what was begun is killed.
//
// A neighbour of the same user can stop the child between its becoming that
// user and its execve(2): a ctx without an end then waits as long as that.
func (c *Conn) Start(ctx context.Context, cmd Command) (*Process, error) {
	if err := cmd.validate(); err != nil {
		return nil, err
	}
	p, err := c.start(ctx, &cmd)
	if errors.Is(err, io.EOF) {
		err = ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	return p, nil
}

func (c *Conn) start(ctx context.Context, cmd *Command) (_ *Process, err error) {
	payload := cmd.encode()
	if len(payload) > maxPayload {
		return nil, &StartError{StageExec, unix.E2BIG, cmd.subject(StageExec)}
	}
	p := &Process{name: cmd.Args[0], waiting: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	exec, execTheirs, err := newSocket("agent-exec")
	if err != nil {
		return nil, err
	}
	p.exec = exec
	setup, setupTheirs, err := newSocket("agent-setup")
	if err != nil {
		closeAll(execTheirs)
		return nil, err
	}
	defer setup.close()

	first, rest := part(payload)
	err = setup.trySend(first) // never has to wait: it is the first
	if err == nil {
		err = c.request(ctx, cmd, len(payload), execTheirs, setupTheirs)
	}
	// The agent's are then the only ends of its: if it dies, that shows.
	closeAll(execTheirs, setupTheirs)
	if err == nil {
		err = sendParts(ctx, setup, rest)
	}
	if err != nil {
		return nil, err
	}
	if p.terminal, err = awaitExec(ctx, cmd, setup); err != nil {
		return nil, err
	}
	return p, p.begin(cmd)
}

// part cuts off what is one message: a sixth of what a socket's buffer takes
// where net.core.wmem_default is the kernel's own.
func part(payload []byte) (first, rest []byte) {
	n := min(len(payload), 32<<10)
	return payload[:n], payload[n:]
}

// sendParts sends the payload to its end, or to where the child wants no more:
// it says why.
func sendParts(ctx context.Context, setup *socket, payload []byte) error {
	for len(payload) > 0 {
		var first []byte
		first, payload = part(payload)
		if err := setup.send(ctx, first, nil); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// request sends the request, with the agent's ends of its two sockets.
func (c *Conn) request(ctx context.Context, cmd *Command, payload, exec, setup int) error {
	fds := []int{exec, setup}
	r := request{kind: requestExec, payload: payload}
	for i, f := range cmd.stdio() {
		if f != nil {
			fds = append(fds, int(f.Fd()))
			r.stdio |= 1 << i
		}
	}
	select {
	case c.sending <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.sending }()
	err := c.control.send(ctx, r.encode(), fds)
	runtime.KeepAlive(cmd)
	return err
}

// awaitExec reads what the forked child says until execve(2), or its death,
// closes its socket. It returns the terminal, where one was asked for.
func awaitExec(ctx context.Context, cmd *Command, setup *socket) (terminal *os.File, err error) {
	defer func() {
		if err != nil && terminal != nil {
			terminal.Close()
			terminal = nil
		}
	}()
	// Each event is taken once, so that the loop ends.
	var failure error
	for {
		e, fd, err := setup.receive(ctx, cmd.TTY != nil)
		switch {
		case errors.Is(err, io.EOF):
			return terminal, failure
		case err != nil:
			return terminal, err
		case e.kind == eventTerminal && fd >= 0 && terminal == nil && failure == nil:
			if terminal, err = openTerminal(fd); err != nil {
				return nil, err
			}
		case e.kind == eventFailed && fd < 0 && failure == nil:
			failure = &StartError{e.stage, e.errno, cmd.subject(e.stage)}
		default:
			closeAll(fd)
			return terminal, fmt.Errorf("event %d out of turn", e.kind)
		}
	}
}

// openTerminal makes a file of a descriptor that untrusted code may have
// chosen, if it is a pty's master. It closes any other.
//
// The kind is asked for without waiting for a file system
// (AT_STATX_DONT_SYNC): the descriptor could be of one whose server never
// answers. A character device 5:2 that was opened is the ptmx driver's
// whatever the file system says, and one that was opened with O_PATH takes no
// flags.
func openTerminal(fd int) (*os.File, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFCHR ||
		st.Rdev_major != 5 || st.Rdev_minor != 2) {
		err = errors.New("it is another file")
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		closeAll(fd)
		return nil, fmt.Errorf("terminal sent by the sandbox's agent: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), nil
}
