package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/review"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A changesFate decides about a sandbox's changes after the command of "do".
type changesFate struct {
	review, apply, keep bool
	overlaid, onDisk    bool
	talk                *review.Conversation
	// program is the begin of a command line that finds the sandbox again.
	program string
	// stay leaves the sandbox up. A sandbox that may stay does so until its changes
	// are settled: no error, signal or crash discards them.
	stay bool
}

// mayStay says that the sandbox may be needed after the end of this program. No change is
// lost that could not be applied, that a person has not decided about, or that the host's
// disk has damaged.
func (f *changesFate) mayStay() bool {
	return f.apply || f.keep || f.talk.Attended || f.review && f.onDisk
}

// conclude does with the changes what was asked for.
func (f *changesFate) conclude(ctx context.Context, box *sandbox.Sandbox, signals *relay.Signals) (err error) {
	f.talk.Relay = signals
	if f.keep {
		f.talk.Say("kept as %s (%s changes %[1]s, %[2]s down %[1]s)", box.ID(), f.program)
		return nil
	}
	if !f.overlaid {
		return nil
	}
	if f.talk.Attended && signals.Dismissed() {
		return f.interrupted(ctx, box, nil)
	}
	c, err := box.Changes(ctx)
	if err != nil {
		err = relay.CauseOf(ctx, err)
		if f.stay {
			return f.interrupted(ctx, box, err)
		}
		return fmt.Errorf("%w: the changes are discarded", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	switch {
	case f.review:
		return f.reviewAll(ctx, box, c)
	case f.apply:
		return f.applyAll(ctx, box, c)
	}
	return f.discard(c)
}

func (f *changesFate) reviewAll(ctx context.Context, box *sandbox.Sandbox, c *sandbox.Changes) error {
	r := &review.Review{Talk: f.talk, Changes: c}
	v, err := r.Run(ctx)
	switch {
	case v == review.Settled:
		f.stay = false
		return err
	case errors.Is(err, sandbox.ErrDamaged) && f.stay:
		return fmt.Errorf("%w\nthe sandbox stays up as %s (%s exec %[2]s, %[3]s down %[2]s)", err, box.ID(), f.program)
	case !f.talk.Attended:
		f.stay = false
		return fmt.Errorf("%w: the changes that were not applied are discarded", err)
	case errors.Is(err, review.ErrTerminalClosed):
		err = nil // the person has left
	}
	return f.interrupted(ctx, box, err)
}

// interrupted keeps a sandbox with undecided changes, and prints the commands to come
// back to it. It returns err. It does not keep a sandbox without a change.
func (f *changesFate) interrupted(ctx context.Context, box *sandbox.Sandbox, err error) error {
	if !f.stay {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdTime)
	defer cancel()
	changed, unknown := f.changed(ctx, box)
	if !changed {
		f.stay = false
		return err
	}
	before := "nothing is lost"
	if unknown != nil {
		before = "its changes are not known"
	}
	f.talk.Say("%s: the sandbox stays up as %s; to come back to it:", before, box.ID())
	for _, command := range []string{"changes %s", "apply %s", "save %s FILE", "down %s"} {
		f.talk.Say("  %s "+command, f.program, box.ID())
	}
	if err == nil {
		err = unknown
	}
	return err
}

// holdTime bounds the time for the look at a sandbox that may have to be kept.
const holdTime = 30 * time.Second

// changed says whether a sandbox has a change that the host does not have. With an error
// it says yes: there may be a change.
func (f *changesFate) changed(ctx context.Context, box *sandbox.Sandbox) (_ bool, err error) {
	if !f.overlaid {
		return false, nil
	}
	c, err := box.Changes(ctx)
	if errors.Is(err, sandbox.ErrNotFound) {
		return false, nil // it was removed meanwhile
	}
	if err != nil {
		return true, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, err := range c.List(sandbox.ListOptions{}) {
		return true, err
	}
	return false, nil
}

func (f *changesFate) applyAll(ctx context.Context, box *sandbox.Sandbox, c *sandbox.Changes) error {
	done, err := c.Apply(ctx, sandbox.ApplyOptions{})
	if err != nil {
		again := "apply"
		var conflict *sandbox.ConflictError
		if errors.As(err, &conflict) {
			again = "apply --overwrite"
		}
		return fmt.Errorf("%w\nnothing is lost: the sandbox stays up as %s (%s %s %[2]s, or %[3]s down %[2]s)",
			err, box.ID(), f.program, again)
	}
	f.stay = false
	f.talk.LeftOut(done.LeftOut)
	f.talk.Say("applied %s", review.ChangeCount(len(done.Changes)))
	if len(done.Held) > 0 {
		f.stay = true
		f.talk.Held(done.Held)
		f.talk.Say("paths that run without a question were held back: the sandbox stays up as %s (%s apply --allow-autorun %[1]s, or %[2]s down %[1]s)", box.ID(), f.program)
	}
	return nil
}

// discard says so, if there is something that the sandbox's end discards.
func (f *changesFate) discard(c *sandbox.Changes) error {
	n := 0
	for _, err := range c.List(sandbox.ListOptions{Names: true}) {
		if errors.Is(err, sandbox.ErrDamaged) { // the command's Result has reported it
			break
		}
		if err != nil {
			return err
		}
		n++
	}
	if n > 0 {
		f.talk.Say("discarded %s (--review, --apply or --keep does otherwise)", review.ChangeCount(n))
	}
	return nil
}

// end removes the sandbox, unless it stays.
func (f *changesFate) end(box *sandbox.Sandbox) error {
	if f.stay {
		return nil
	}
	return box.Close()
}
