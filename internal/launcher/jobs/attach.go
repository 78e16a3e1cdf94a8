package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func (v *Session) noExec(exec string) error {
	return &fault.SandboxError{ID: v.ID, Err: fmt.Errorf("detached exec %.64q %w; a command whose result a client has got is forgotten, ps --execs shows the others", exec, fault.ErrNotFound)}
}

func (v *Session) attach(ctx context.Context, e ExecID) (_ *Process, err error) {
	kept := &detachedExec{Dir: v.execDir(e)}
	r, err := readExecRecord(kept.Dir)
	kept.limit, kept.ring = r.OutputLimit, r.Ring
	if errors.Is(err, fs.ErrNotExist) {
		return nil, v.Why(ctx, v.noExec(e.String()))
	}
	if err != nil {
		return nil, err
	}
	if v.Paused() {
		return nil, &fault.SandboxError{ID: v.ID, Err: fault.ErrPaused}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, kept.close())
		}
	}()
	if err := kept.open(os.O_RDONLY); errors.Is(err, fs.ErrNotExist) { // a client has got its result meanwhile
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
		StartedAt: r.Started, Timeout: r.Timeout, Kept: kept, before: r.Traffic,
	}
	p.farewell.grace = r.Grace.Time()
	starting := v.startsUnderWay()
	err = v.UnlessPaused(ctx, func(ctx context.Context) (err error) {
		p.Inside, err = conn.Attach(ctx, e.agent())
		return err
	})
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
// Output that comes later is never shown. So drainTime is longer than the longest delay of the
// drainer on a busy machine.
const drainTime = 10 * time.Second

// drain waits for the whole output of a detached exec, and adds to the result whether it is complete.
func (p *Process) drain(r *spec.Result) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := p.Inside.Drained(ctx); err != nil && !errors.Is(err, agent.ErrGone) {
		r.Notes = append(r.Notes, "not all of the command's output may be kept: "+err.Error())
	}
	var out, errs error
	r.StdoutTruncated, r.StdoutOmitted, out = p.Kept.omission(p.Kept.stdout)
	r.StderrTruncated, r.StderrOmitted, errs = p.Kept.omission(p.Kept.stderr)
	if err := errors.Join(out, errs); err != nil {
		r.Notes = append(r.Notes, "the command's output cannot be read: "+err.Error())
	}
}

// forget removes the state of a detached exec that has ended, once a client knows the result.
// Clients that have the output open can read it for ToldTime.
//
// The directory moves before the agent forgets the exec: if the agent does not know an exec in
// the old place, its state is removed with the output. The agent then ends the writer of the
// output. Otherwise another command that has opened the pipes could keep the writer alive.
func (p *Process) forget() error {
	p.Live.Disarm(p.Exec)
	told, err := p.Live.Told.add(p.Exec, p.Kept)
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if conn, err := p.Live.Connect(ctx); err == nil {
		_ = conn.Forget(ctx, p.Exec.agent()) // after an error the agent is gone, or forgets when it needs the place
	}
	if told {
		err = errors.Join(err, p.Live.Told.dropEmpty(p.Exec))
	}
	return err
}

// Attach returns a handle of a detached command by the id of its exec. The command may have
// ended. Several processes can attach to one command, and all get the same Result. Once a client
// has got the result, nobody can attach any more.
//
// Errors: [fault.ErrNotFound], [fault.ErrNotRunning], [fault.ErrPaused].
func (v *Session) Attach(ctx context.Context, exec string) (*Process, error) {
	e, ok := parseExec(exec)
	if !ok {
		return nil, v.noExec(exec)
	}
	return v.enter(func() (*Process, error) { return v.attach(ctx, e) })
}
