package launcher

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

func (v *live) noExec(exec string) error {
	return &launch.SandboxError{ID: v.ID, Err: fmt.Errorf("detached exec %.64q %w", exec, launch.ErrNotFound)}
}

func (v *live) attach(ctx context.Context, e execID) (_ *Process, err error) {
	kept := &detached{dir: v.execDir(e)}
	r, err := readExecRecord(kept.dir)
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
	conn, err := v.connect(ctx)
	if err != nil {
		return nil, err
	}
	leaf, err := v.Group.OpenLeaf(e.leaf())
	if err != nil {
		return nil, v.Why(ctx, err)
	}
	p := &Process{
		live: v, exec: e, leaf: leaf, conn: conn, args: r.Args, limits: r.Limits, config: v.Current(),
		started: r.Started, timeout: r.Timeout, kept: kept,
	}
	starting := v.startingNow()
	p.inside, err = conn.Attach(ctx, e.agent())
	if err != nil {
		if errors.Is(err, agent.ErrNoExec) {
			err = v.noExec(e.String())
			if !v.mayStart(e, r, starting) {
				err = errors.Join(err, v.forgetLost(ctx, e))
			}
		} else if record.AgentGone(err) {
			v.disconnect(conn)
		}
		return nil, errors.Join(v.Why(ctx, err), leaf.Close())
	}
	v.register(p)
	return p, nil
}

// drainTime is how long output may take to get into its files once nobody is
// left who could write more: more than a busy machine keeps who drains it from
// running, since what has not come by then is never shown.
const drainTime = 10 * time.Second

// forget removes what there is of a detached exec that has ended, once somebody
// knows how. Its output stays readable for toldTime to those that have it open.
//
// The agent forgets after the exec's directory has moved: the state of an exec that the
// agent does not know is removed, with the output. Then the agent ends the writer of the
// output, which a neighbour that has opened the command's pipes would keep alive.
func (p *Process) forget() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := p.inside.Drained(ctx); err != nil && !errors.Is(err, agent.ErrGone) {
		p.result.Notes = append(p.result.Notes, "not all of the command's output may be kept: "+err.Error())
	}
	p.result.StdoutTruncated, p.result.StderrTruncated = p.kept.cut(p.kept.stdout), p.kept.cut(p.kept.stderr)
	told, err := p.live.tell(p.exec, p.kept)
	ctx, done := context.WithTimeout(context.Background(), drainTime) // the other may have ended
	defer done()
	if conn, err := p.live.connect(ctx); err == nil {
		_ = conn.Forget(ctx, p.exec.agent()) // it is gone, or forgets by itself when it needs the place
	}
	if told {
		err = errors.Join(err, p.live.dropEmptyTold(p.exec))
	}
	return err
}

// Attach takes up a detached command, which may have ended, by the id of its
// exec. Any number may be attached to one, in several processes; once one of
// them was told how it ended there is nothing to attach to any more.
//
// Errors: [launch.ErrNotFound], [launch.ErrNotRunning], [launch.ErrPaused].
func (v *live) Attach(ctx context.Context, exec string) (*Process, error) {
	e, ok := parseExec(exec)
	if !ok {
		return nil, v.noExec(exec)
	}
	v.enter()
	p, err := v.attach(ctx, e)
	if err != nil {
		v.leave()
		return nil, err
	}
	return p, nil
}
