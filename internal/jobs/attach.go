package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

func (v *Session) noExec(exec string) error {
	return &launch.SandboxError{ID: v.ID, Err: fmt.Errorf("detached exec %.64q %w", exec, launch.ErrNotFound)}
}

func (v *Session) attach(ctx context.Context, e ExecID) (_ *Process, err error) {
	kept := &detached{Dir: v.execDir(e)}
	r, err := readExecRecord(kept.Dir)
	kept.limit = r.OutputLimit
	if errors.Is(err, fs.ErrNotExist) {
		return nil, v.Why(ctx, v.noExec(e.String()))
	}
	if err != nil {
		return nil, err
	}
	if v.Paused() {
		return nil, &launch.SandboxError{ID: v.ID, Err: launch.ErrPaused}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, kept.close())
		}
	}()
	if err := kept.open(os.O_RDONLY); errors.Is(err, fs.ErrNotExist) { // its end was told meanwhile
		return nil, v.Why(ctx, v.noExec(e.String()))
	} else if err != nil {
		return nil, err
	}
	conn, err := v.Connect(ctx)
	if err != nil {
		return nil, err
	}
	leaf, err := v.Group.OpenLeaf(e.Leaf())
	if err != nil {
		return nil, v.Why(ctx, err)
	}
	p := &Process{
		Live: v, Exec: e, Leaf: leaf, Conn: conn, Args: r.Args, limits: r.Limits, Config: v.Current(),
		StartedAt: r.Started, Timeout: r.Timeout, Kept: kept,
	}
	starting := v.starting.now()
	p.Inside, err = conn.Attach(ctx, e.agent())
	if err != nil {
		if errors.Is(err, agent.ErrNoExec) {
			err = v.noExec(e.String())
			if !v.mayStart(e, r, starting) {
				err = errors.Join(err, v.ForgetLost(ctx, e))
			}
		} else if record.AgentGone(err) {
			v.disconnect(conn)
		}
		return nil, errors.Join(v.Why(ctx, err), leaf.Close())
	}
	v.Register(p)
	return p, nil
}

// drainTime is how long output may take to reach its files once no process can write more.
// It is longer than a busy machine keeps the drainer from running: later output is never
// shown.
const drainTime = 10 * time.Second

// forget removes the state of a detached exec that has ended, once a client knows the end.
// The output stays readable for ToldTime to clients that have it open.
//
// The agent forgets the exec after its directory has moved, since the state of an exec
// that the agent does not know is removed with the output. Then the agent ends the writer
// of the output, which a neighbour with the command's pipes would keep alive.
func (p *Process) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := p.Inside.Drained(ctx); err != nil && !errors.Is(err, agent.ErrGone) {
		p.result.Notes = append(p.result.Notes, "not all of the command's output may be kept: "+err.Error())
	}
	p.result.StdoutTruncated, p.result.StderrTruncated = p.Kept.cut(p.Kept.stdout), p.Kept.cut(p.Kept.stderr)
	p.Live.Disarm(p.Exec)
	told, err := p.Live.Told.add(p.Exec, p.Kept)
	ctx, done := context.WithTimeout(context.Background(), drainTime) // the other may have ended
	defer done()
	if conn, err := p.Live.Connect(ctx); err == nil {
		_ = conn.Forget(ctx, p.Exec.agent()) // it is gone, or forgets by itself when it needs the place
	}
	if told {
		err = errors.Join(err, p.Live.Told.dropEmpty(p.Exec))
	}
	return err
}

// Attach takes up a detached command, which may have ended, by the id of its
// exec. Any number may be attached to one, in several processes; once one of
// them was told how it ended there is nothing to attach to any more.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning], [launch.ErrPaused].
func (v *Session) Attach(ctx context.Context, exec string) (*Process, error) {
	e, ok := parseExec(exec)
	if !ok {
		return nil, v.noExec(exec)
	}
	v.Enter()
	p, err := v.attach(ctx, e)
	if err != nil {
		v.Leave()
		return nil, err
	}
	return p, nil
}
