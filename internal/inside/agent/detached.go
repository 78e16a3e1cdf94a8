package agent

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// Tie has the agent end, and all of its sandbox with it, when this connection
// does. The agent reads it before it can see that end, so no answer is waited
// for.
func (c *Conn) Tie(ctx context.Context) error {
	if err := c.sendOneWay(ctx, request{kind: requestTie}); err != nil {
		return fmt.Errorf("tie the sandbox to this connection: %w", err)
	}
	return nil
}

// KeepsTail says whether the agent keeps the head and the tail of a detached command's output. An
// older one keeps the head only, in another form.
func (c *Conn) KeepsTail() bool { return c.version >= ringVersion }

// Forget removes the agent's state of a detached command, running or ended; it ends no
// command. An unknown id is no error.
//
// The agent keeps ended commands until then, or until it needs the place: it keeps 256,
// and drops those that ended first.
func (c *Conn) Forget(ctx context.Context, id ExecID) error {
	if err := c.sendOneWay(ctx, request{kind: requestForget, id: id}); err != nil {
		return fmt.Errorf("forget the detached command %s: %w", id, err)
	}
	return nil
}

// Withhold has the agent refuse the set-group-ID bit to all commands that it starts from now
// on. Nothing gives the bit back. The agent must have been started with the word group-ids.
func (c *Conn) Withhold(ctx context.Context) error {
	err := c.withhold(ctx)
	if err != nil {
		return fmt.Errorf("withhold the set-group-ID bit from commands of the sandbox: %w", asGone(err))
	}
	return nil
}

func (c *Conn) withhold(ctx context.Context) error {
	if c.version < withholdVersion {
		return &VersionError{int(c.version), withholdVersion, protocolVersion}
	}
	answer, err := c.query(ctx, request{kind: requestWithhold})
	if err != nil {
		return err
	}
	defer answer.close()
	return answer.expect(ctx, eventWithheld)
}

// sendOneWay is sendRequest for a request without an answer.
func (c *Conn) sendOneWay(ctx context.Context, r request) error {
	return asGone(c.sendRequest(ctx, r, nil))
}

// query sends a request that is answered on a socket of its own.
func (c *Conn) query(ctx context.Context, r request) (*socket, error) {
	ours, theirs, err := newSocket("agent-answer")
	if err != nil {
		return nil, err
	}
	err = c.sendRequest(ctx, r, []int{theirs})
	descriptor.CloseFD(theirs)
	if err != nil {
		return nil, errors.Join(err, ours.close())
	}
	return ours, nil
}

// Attach returns a detached command, running or ended. Any number of hosts may
// be attached to one. The error is ErrNoExec if the agent keeps none of that
// id.
func (c *Conn) Attach(ctx context.Context, id ExecID) (*Process, error) {
	p, err := c.attach(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("attach to the detached command %s: %w", id, asGone(err))
	}
	return p, nil
}

func (c *Conn) attach(ctx context.Context, id ExecID) (*Process, error) {
	exec, err := c.query(ctx, request{kind: requestAttach, id: id})
	if err != nil {
		return nil, err
	}
	err = exec.expect(ctx, eventAttached)
	if failed, ok := errors.AsType[*StartError](err); ok && failed.Stage == StageID && failed.Errno == syscall.ESRCH {
		err = ErrNoExec
	}
	if err != nil {
		return nil, errors.Join(err, exec.close())
	}
	p := newProcess(c, id.String())
	p.exec, p.detached, p.id, p.settled = exec, true, id, true
	return p, nil
}

// Detached lists the detached commands that the agent keeps, running or ended.
func (c *Conn) Detached(ctx context.Context) ([]ExecID, error) {
	list, err := c.detachedList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the detached commands of the sandbox: %w", asGone(err))
	}
	return list, nil
}

func (c *Conn) detachedList(ctx context.Context) ([]ExecID, error) {
	answer, err := c.query(ctx, request{kind: requestList})
	if err != nil {
		return nil, err
	}
	defer answer.close()
	return answer.receiveList(ctx)
}
