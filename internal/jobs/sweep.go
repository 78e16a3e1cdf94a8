package jobs

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// settleTime is how old a detached exec is that is certainly not being started
// any more, though its process lives.
const settleTime = time.Minute

// A startList has the detached execs that are being started: the agent may not know them yet.
type startList struct {
	mu  sync.Mutex
	all map[ExecID]bool
}

func (s *startList) begin(e ExecID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[ExecID]bool{}
	}
	s.all[e] = true
}

// end says that the start is over, with success or without.
func (s *startList) end(e ExecID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, e)
}

// now must be called before the agent is asked. An exec that is not in the answer is, or was,
// known to the agent.
func (s *startList) now() map[ExecID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

// mayStart says whether an exec that the agent does not know may be one that is
// being started, by this launcher or another.
func (v *Session) mayStart(e ExecID, r execRecord, starting map[ExecID]bool) bool {
	if v.all.numbered(e) {
		return starting[e]
	}
	return e.ownerLives() && time.Since(r.Started) < settleTime
}

// ForgetLost removes the state of a detached exec that the agent does not know: the
// process that started it, or that was told its end, was killed meanwhile, or the agent
// had no more room for its exit.
func (v *Session) ForgetLost(ctx context.Context, e ExecID) error {
	d := &detached{Dir: v.execDir(e)}
	if _, err := os.Lstat(d.Dir); errors.Is(err, fs.ErrNotExist) { // its end was told meanwhile
		return nil
	}
	v.Disarm(e)
	return errors.Join(d.remove(), v.clear(ctx, e.Leaf()))
}

// Sweep removes the rest of detached execs whose end cannot be told to anybody.
func (v *Session) Sweep(ctx context.Context) error {
	all, err := v.DetachedExecs()
	if err != nil || len(all) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := v.Connect(ctx)
	if err != nil {
		return err
	}
	starting := v.starting.now()
	kept, err := conn.Detached(ctx)
	if err != nil {
		return v.Why(ctx, err)
	}
	var errs []error
	for _, e := range all {
		if slices.Contains(kept, e.agent()) {
			continue
		}
		// Without a readable record its start, or its removal, was cut short.
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
		_ = v.Sweep(context.Background()) // or the next time
	}
}
