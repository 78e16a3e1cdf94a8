package review

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A Fate decides about a sandbox's changes after the command of "do".
type Fate struct {
	Review, Apply, Keep bool
	Overlaid, OnDisk    bool
	Talk                *Conversation
	// Program begins a command line that finds the sandbox again.
	Program string
	// Stay leaves the sandbox up. A sandbox that may stay does so until its changes
	// are settled: no error, signal or crash discards them.
	Stay bool
}

// MayStay says that the sandbox may be needed after the end of this program. No change is
// lost that could not be applied, that a person has not decided about, or that the host's
// disk has damaged.
func (f *Fate) MayStay() bool {
	return f.Apply || f.Keep || f.Talk.Attended || f.Review && f.OnDisk
}

// Conclude carries out the decision of the flags about the changes.
func (f *Fate) Conclude(ctx context.Context, box *sandbox.Sandbox, signals *relay.Signals) (err error) {
	f.Talk.Relay = signals
	if f.Keep {
		f.Talk.Say("kept as %s (%s changes %[1]s, %[2]s down %[1]s)", box.ID(), f.Program)
		return nil
	}
	if !f.Overlaid {
		return nil
	}
	if f.Talk.Attended && signals.Dismissed() {
		return f.Interrupted(ctx, box, nil)
	}
	c, err := box.Changes(ctx)
	if err != nil {
		err = relay.CauseOf(ctx, err)
		if f.Stay {
			return f.Interrupted(ctx, box, err)
		}
		return fmt.Errorf("%w: the changes are discarded", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	switch {
	case f.Review:
		return f.reviewAll(ctx, box, c)
	case f.Apply:
		return f.applyAll(ctx, box, c)
	}
	return f.discard(c)
}

func (f *Fate) reviewAll(ctx context.Context, box *sandbox.Sandbox, c *sandbox.Changes) error {
	r := &Review{Talk: f.Talk, Changes: c}
	v, err := r.Run(ctx)
	switch {
	case v == Settled:
		f.Stay = false
		return err
	case errors.Is(err, sandbox.ErrDamaged) && f.Stay:
		return fmt.Errorf("%w\nthe sandbox stays up as %s (%s exec %[2]s, %[3]s down %[2]s)", err, box.ID(), f.Program)
	case !f.Talk.Attended:
		f.Stay = false
		return fmt.Errorf("%w: the changes that were not applied are discarded", err)
	case errors.Is(err, ErrTerminalClosed):
		err = nil // the person has left
	}
	return f.Interrupted(ctx, box, err)
}

// Interrupted keeps a sandbox with undecided changes, and prints the commands to come
// back to it. It returns err. It does not keep a sandbox without a change.
func (f *Fate) Interrupted(ctx context.Context, box *sandbox.Sandbox, err error) error {
	if !f.Stay {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdTime)
	defer cancel()
	changed, unknown := f.changed(ctx, box)
	if !changed {
		f.Stay = false
		return err
	}
	before := "nothing is lost"
	if unknown != nil {
		before = "its changes are not known"
	}
	f.Talk.Say("%s: the sandbox stays up as %s; to come back to it:", before, box.ID())
	for _, command := range []string{"changes %s", "apply %s", "save %s FILE", "down %s"} {
		f.Talk.Say("  %s "+command, f.Program, box.ID())
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
func (f *Fate) changed(ctx context.Context, box *sandbox.Sandbox) (_ bool, err error) {
	if !f.Overlaid {
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

func (f *Fate) applyAll(ctx context.Context, box *sandbox.Sandbox, c *sandbox.Changes) error {
	done, err := c.Apply(ctx, sandbox.ApplyOptions{})
	if err != nil {
		again := "apply"
		if _, ok := errors.AsType[*sandbox.ConflictError](err); ok {
			again = "apply --overwrite"
		}
		return fmt.Errorf("%w\nnothing is lost: the sandbox stays up as %s (%s %s %[2]s, or %[3]s down %[2]s)",
			err, box.ID(), f.Program, again)
	}
	f.Stay = false
	f.Talk.LeftOut(done.LeftOut)
	f.Talk.Say("applied %s", ChangeCount(len(done.Changes)))
	if len(done.Held) > 0 {
		f.Stay = true
		f.Talk.Held(done.Held)
		f.Talk.Say("paths that run without a question were held back: the sandbox stays up as %s (%s apply --allow-autorun %[1]s, or %[2]s down %[1]s)", box.ID(), f.Program)
	}
	return nil
}

// discard says so, if there is something that the sandbox's end discards.
func (f *Fate) discard(c *sandbox.Changes) error {
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
		f.Talk.Say("discarded %s (--review, --apply or --keep does otherwise)", ChangeCount(n))
	}
	return nil
}

// End removes the sandbox, unless it stays.
func (f *Fate) End(box *sandbox.Sandbox) error {
	if f.Stay {
		return nil
	}
	return box.Close()
}
