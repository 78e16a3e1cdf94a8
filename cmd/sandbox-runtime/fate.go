package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A changesFate is what becomes of a sandbox's changes when the command of "do" has
// ended.
type changesFate struct {
	review, apply, keep bool
	overlaid            bool
	talk                *conversation
	// stay leaves the sandbox up.
	stay bool
}

func fateOf(cmd *cli.Command, c spec.Config) (*changesFate, error) {
	f := &changesFate{
		review: cmd.Bool("review"), apply: cmd.Bool("apply"), keep: cmd.Bool("keep"),
		overlaid: len(c.Overlays) > 0,
		talk:     &conversation{in: os.Stdin, out: cmd.Root().ErrWriter},
	}
	chosen := 0
	for _, flag := range []struct {
		name string
		set  bool
	}{{"review", f.review}, {"apply", f.apply}, {"keep", f.keep}} {
		if !flag.set {
			continue
		}
		chosen++
		if !f.overlaid && flag.name != "keep" {
			return nil, fmt.Errorf("--%s: no change is on a layer; name a directory with --overlay DIR", flag.name)
		}
		if cmd.Bool("local") {
			return nil, fmt.Errorf("--%s and --local do not go together: without a sandbox all is written to the host at once", flag.name)
		}
	}
	if chosen > 1 {
		return nil, errors.New("--review, --apply and --keep: one of them says what becomes of the changes")
	}
	if chosen == 0 && cmd.Bool("interactive") && cmd.Bool("tty") && isTerminal(os.Stdin) {
		f.review = f.overlaid
	}
	return f, nil
}

// mayStay says that the sandbox may be needed when this program has ended: what
// could not be applied is not lost.
func (f *changesFate) mayStay() bool { return f.apply || f.keep }

// conclude does with the changes what was asked for.
func (f *changesFate) conclude(ctx context.Context, box *sandbox.Sandbox, relay *signalRelay) (err error) {
	f.talk.relay = relay
	if f.keep {
		f.stay = true
		f.talk.say("kept as %s (%s changes %[1]s, %[2]s down %[1]s)", box.ID(), programName)
		return nil
	}
	if !f.overlaid {
		return nil
	}
	c, err := box.Changes(ctx)
	if err != nil {
		return fmt.Errorf("%w: the changes are discarded", causeOf(ctx, err))
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	switch {
	case f.review:
		return review(ctx, f.talk, c)
	case f.apply:
		return f.applyAll(ctx, box, c)
	}
	return f.discard(c)
}

func (f *changesFate) applyAll(ctx context.Context, box *sandbox.Sandbox, c *sandbox.Changes) error {
	done, err := c.Apply(ctx, sandbox.ApplyOptions{})
	if err != nil {
		f.stay = true
		again := "apply"
		var conflict *sandbox.ConflictError
		if errors.As(err, &conflict) {
			again = "apply --overwrite"
		}
		return fmt.Errorf("%w\nnothing is lost: the sandbox stays up as %s (%s %s %[2]s, or %[3]s down %[2]s)",
			err, box.ID(), programName, again)
	}
	f.talk.leftOut(done.LeftOut)
	f.talk.say("applied %s", changeCount(len(done.Changes)))
	if len(done.Held) > 0 {
		f.stay = true
		f.talk.held(done.Held)
		f.talk.say("what runs without a question was held back: the sandbox stays up as %s (%s apply --allow-autorun %[1]s, or %[2]s down %[1]s)", box.ID(), programName)
	}
	return nil
}

// discard says so, if there is something that the sandbox's end discards.
func (f *changesFate) discard(c *sandbox.Changes) error {
	n := 0
	for _, err := range c.List(sandbox.ListOptions{Names: true}) {
		if err != nil {
			return err
		}
		n++
	}
	if n > 0 {
		f.talk.say("discarded %s (--review, --apply or --keep does otherwise)", changeCount(n))
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
