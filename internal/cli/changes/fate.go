package changes

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// FateOf returns the fate of the changes of a sandbox at the end of "do": --review, --apply or --keep. It also
// returns a function for the messages that belong in the Result: with --json
// stderr has only the questions of --review.
func FateOf(cmd *cli.Command, c spec.Config) (_ *review.Fate, notes func() []string, _ error) {
	out := cmd.Root().ErrWriter
	var kept strings.Builder
	if cmd.Bool("json") && !cmd.Bool("review") {
		out = &kept
	}
	notes = func() []string { return strings.FieldsFunc(kept.String(), func(r rune) bool { return r == '\n' }) }
	f := &review.Fate{
		Review: cmd.Bool("review"), Apply: cmd.Bool("apply"), Keep: cmd.Bool("keep"),
		Overlaid: len(c.Overlays) > 0 || c.Writable, OnDisk: c.Storage == spec.StorageDisk,
		Talk:    &review.Conversation{In: os.Stdin, Out: out},
		Program: commandline.ProgramWithDirs(cmd),
	}
	chosen := 0
	for _, flag := range []struct {
		name string
		set  bool
	}{{"review", f.Review}, {"apply", f.Apply}, {"keep", f.Keep}} {
		if !flag.set {
			continue
		}
		chosen++
		switch {
		case flag.name == "keep" || len(c.Overlays) > 0:
		case c.Writable:
			return nil, nil, fmt.Errorf("--%s: %s", flag.name, layer.NothingBelowImage)
		default:
			return nil, nil, fmt.Errorf("--%s: no change is on a layer; name a directory with --overlay DIR", flag.name)
		}
		if cmd.Bool("local") {
			return nil, nil, fmt.Errorf("--%s and --local do not go together: without a sandbox all is written to the host at once", flag.name)
		}
	}
	if chosen > 1 {
		return nil, nil, errors.New("--review, --apply and --keep do not go together; say one of them")
	}
	if chosen == 0 && cmd.Bool("interactive") && cmd.Bool("tty") && review.IsTerminal(os.Stdin) {
		f.Review = len(c.Overlays) > 0 && !cmd.Bool("local")
	}
	// The check comes before the command: a terminal that has hung up is no terminal.
	f.Talk.Attended = f.Review && review.IsTerminal(os.Stdin)
	f.Stay = f.MayStay()
	return f, notes, nil
}
