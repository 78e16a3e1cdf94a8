package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// Conn is the host's end of a control socket of an agent.
//
// The first of an agent is made before the agent runs, by New, and usable once
// Ready has returned; further ones come from Dial. Any number of commands may be
// started, at once too. The end of a Conn, by Close or with the host's process,
// is the end of the agent and of everything in its pid namespace if the agent is
// tied to it: after Tie, or where it was started without a listener. Otherwise
// the agent stays; attached commands end as their Process is closed, or with the
// host's process.
type Conn struct {
	control *socket
	// sending is held by the one that sends. A channel, for a context to
	// interrupt the wait for it.
	sending *semaphore.Weighted
	// version is the agent's, once it has said so.
	version int32
}

// New returns a Conn and the socket to give to the agent as descriptor 4. The
// caller closes guest once the agent has it: until then a dead agent is not
// noticed.
func New() (c *Conn, guest *os.File, err error) {
	control, theirs, err := newSocket("agent-control")
	if err != nil {
		return nil, nil, err
	}
	c = &Conn{control: control, sending: semaphore.NewWeighted(1)}
	return c, os.NewFile(uintptr(theirs), "agent-control-guest"), nil
}

// Close closes the control socket, which ends an agent that is tied to it. It is
// safe to call twice.
func (c *Conn) Close() error {
	if err := c.control.close(); err != nil {
		return fmt.Errorf("close the agent's control socket: %w", err)
	}
	return nil
}

// Ready waits until the agent serves and checks that it speaks a version of the
// protocol that is understood here. It is called once. The error is ErrGone if
// the agent ended without a word, a *VersionError, or names the step and the
// errno if the agent refused to serve.
func (c *Conn) Ready(ctx context.Context) error {
	if err := c.greeting(ctx); err != nil {
		return fmt.Errorf("start the sandbox's agent: %w", err)
	}
	return nil
}

// greeting takes the agent's first message.
func (c *Conn) greeting(ctx context.Context) error {
	e, _, err := c.control.receive(ctx, false)
	switch {
	case err != nil:
		return asGone(err)
	case e.kind == eventFatal:
		return fmt.Errorf("%s: %w", e.stage, e.errno)
	case e.kind != eventHello:
		return fmt.Errorf("event %d in place of its version", e.kind)
	case e.version < oldestVersion, e.version > protocolVersion:
		return &VersionError{int(e.version), oldestVersion, protocolVersion}
	}
	c.version = e.version
	return nil
}

// Start starts a command, and returns once it has been executed. The error is a
// *StartError if the command is at fault or a limit was hit, ErrGone if the agent has
// ended. If ctx ends first, the command is killed.
func (c *Conn) Start(ctx context.Context, cmd Command) (*Process, error) {
	p, err := c.Begin(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if err := p.Started(ctx); err != nil {
		return nil, errors.Join(err, p.Abandon())
	}
	return p, nil
}

// Begin is Start, and returns once the agent has the request. [Process.Started], or at the
// latest [Process.Wait], says whether the command was executed: a caller that needs only
// that is woken once and not twice.
func (c *Conn) Begin(ctx context.Context, cmd Command) (*Process, error) {
	if err := cmd.validate(); err != nil {
		return nil, err
	}
	if cmd.Root != nil && c.version < rootVersion {
		return nil, fmt.Errorf("start %s with a root of its own: %w", cmd.Args[0],
			&VersionError{int(c.version), rootVersion, protocolVersion})
	}
	if cmd.Program != nil && c.version < programVersion {
		return nil, fmt.Errorf("start %s: %w", cmd.Args[0],
			&VersionError{int(c.version), programVersion, protocolVersion})
	}
	cmd.PlainNewlines = cmd.PlainNewlines && c.version >= newlinesVersion
	p, err := c.begin(ctx, &cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Args[0], asGone(err))
	}
	return p, nil
}

func (c *Conn) begin(ctx context.Context, cmd *Command) (_ *Process, err error) {
	p := newProcess(c, cmd.Args[0])
	p.dir, p.tty = cmd.Dir, cmd.TTY != nil
	if cmd.Detach != nil {
		p.detached, p.id = true, cmd.Detach.ID
	}
	payload := cmd.encode()
	size := len(payload)
	if size > maxPayload {
		return nil, &StartError{StageExec, unix.E2BIG, p.subject(StageExec)}
	}
	var execTheirs, setupTheirs int
	if p.exec, execTheirs, err = newSocket("agent-exec"); err != nil {
		return nil, err
	}
	if p.setup, setupTheirs, err = newSocket("agent-setup"); err != nil {
		descriptor.CloseFD(execTheirs)
		return nil, errors.Join(err, p.exec.close())
	}
	begun := false
	defer func() { // also after a panic of Meanwhile
		if !begun {
			err = errors.Join(err, p.Abandon())
		}
	}()
	if cmd.Meanwhile == nil { // the child finds the first message, and need not wait
		n := min(len(payload), messageSize)
		err = p.setup.trySend(payload[:n]) // never has to wait: it is the first
		payload = payload[n:]
	}
	if err == nil {
		r, fds := cmd.request(size, execTheirs, setupTheirs)
		err = c.sendRequest(ctx, r, fds)
		runtime.KeepAlive(cmd)
	}
	// Now only the agent has the other ends. So its death closes them.
	descriptor.CloseFD(execTheirs, setupTheirs)
	if err == nil && cmd.Meanwhile != nil {
		cmd.Meanwhile()
		err = ctx.Err()
	}
	if err == nil {
		err = sendParts(ctx, p.setup, payload)
	}
	if err != nil {
		return nil, err
	}
	begun = true
	return p, nil
}

// messageSize is a sixth of a socket's buffer if net.core.wmem_default is the kernel's own.
const messageSize = 32 << 10

// sendParts sends the payload. It stops if the child has closed the socket. The child's verdict
// has the reason.
func sendParts(ctx context.Context, setup *socket, payload []byte) error {
	for message := range slices.Chunk(payload, messageSize) {
		if err := setup.send(ctx, message, nil); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// sendRequest sends a request, with descriptors.
func (c *Conn) sendRequest(ctx context.Context, r request, fds []int) error {
	if err := c.sending.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.sending.Release(1)
	return c.control.send(ctx, r.encode(), fds)
}

// openTerminal makes a file of a descriptor that untrusted code may have chosen, if it is
// a pty's master. It closes any other.
//
// The kind is asked for without waiting for a file system (AT_STATX_DONT_SYNC): the
// descriptor could be of one whose server never answers. An opened character device 5:2 is
// the ptmx driver's, on any file system, and one that was opened with O_PATH takes no
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
		descriptor.CloseFD(fd)
		return nil, fmt.Errorf("terminal sent by the sandbox's agent: %w", err)
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), nil
}
