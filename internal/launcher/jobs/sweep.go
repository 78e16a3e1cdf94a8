package jobs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"
)

// settleTime bounds the start of a detached exec by another launcher. The start of an older exec
// is over, even if its launcher lives.
const settleTime = time.Minute

// startsUnderWay returns the detached execs whose start is under way. Call it before a question to the agent: if an
// exec is not in the returned list, the agent knows it, or has known it.
func (v *Session) startsUnderWay() map[ExecID]bool {
	all := map[ExecID]bool{}
	v.starting.Range(func(e, _ any) bool {
		all[e.(ExecID)] = true
		return true
	})
	return all
}

// mayStart says whether the start of an exec may be under way, by this launcher or another. The
// agent does not know the exec.
func (v *Session) mayStart(e ExecID, r execRecord, starting map[ExecID]bool) bool {
	if v.all.numbered(e) {
		return starting[e]
	}
	return e.ownerLives() && time.Since(r.Started) < settleTime
}

// ForgetLost removes the state of a detached exec that the agent does not know. Either the
// process that started the exec, or got its result, was killed meanwhile, or the agent had no
// more room for the exit status.
func (v *Session) ForgetLost(ctx context.Context, e ExecID) error {
	d := &detachedExec{Dir: v.execDir(e)}
	if _, err := os.Lstat(d.Dir); errors.Is(err, fs.ErrNotExist) { // a client has got its result meanwhile
		return nil
	}
	v.Disarm(e)
	return errors.Join(d.remove(), v.clear(ctx, e.Leaf()))
}

// Sweep removes the remaining state of detached execs that the agent does not know: no client
// can get their result.
func (v *Session) Sweep(ctx context.Context) error {
	all, err := v.DetachedExecs()
	if err != nil || len(all) == 0 {
		return err
	}
	conn, err := v.Connect(ctx)
	if err != nil {
		return err
	}
	starting := v.startsUnderWay()
	waiting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	kept, err := conn.Detached(waiting)
	if err != nil {
		return v.Why(ctx, unanswered(waiting, err))
	}
	var errs []error
	for _, e := range all {
		if slices.Contains(kept, e.agent()) {
			continue
		}
		// Without a readable record the start, or the removal, of the exec was cut short.
		r, err := readExecRecord(v.execDir(e))
		if err != nil {
			r.Started = time.Now()
		}
		if !v.mayStart(e, r, starting) {
			errs = append(errs, v.ForgetLost(ctx, e))
		}
	}
	return errors.Join(errs...)
}

// SweepEvery is the number of detached execs of this process between two sweeps: a client
// that never asks for results must not fill the host.
const SweepEvery = 64

func (v *Session) sweepSometimes() {
	v.Mu.Lock()
	v.detached++
	due := v.detached%SweepEvery == 0
	v.Mu.Unlock()
	if due {
		_ = v.Sweep(context.Background()) // after an error the next sweep tries again
	}
}
