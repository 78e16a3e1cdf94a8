package commandline

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v3"
)

// CategoryOCI is the heading of the OCI commands in help. Their errors are worded
// and logged for the daemons that call them.
const CategoryOCI = "OCI commands"

// CategorySandbox is the heading of the commands for people.
const CategorySandbox = "Sandboxes"

// LogUsageError opens the log of the global flags, and then calls word, or UsageError if word is
// nil. A command with wrong flags never gets to Prepare, which opens the log for all others.
func LogUsageError(out *Reporter, word cli.OnUsageErrorFunc) cli.OnUsageErrorFunc {
	if word == nil {
		word = UsageError
	}
	return func(ctx context.Context, cmd *cli.Command, err error, isSub bool) error {
		if oerr := out.openFor(cmd.Root()); oerr != nil {
			err = oerr
		}
		return word(ctx, cmd, err, isSub)
	}
}

// UsageError returns the mistake in one line. The library would add the whole help text.
func UsageError(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	return fmt.Errorf("%s (see %s --help)", withoutGoFunctions(err.Error()), cmd.FullName())
}

// SandboxUsageError is UsageError with the flag as the user typed it.
func SandboxUsageError(ctx context.Context, cmd *cli.Command, err error, sub bool) error {
	return UsageError(ctx, cmd, UnknownFlag(cmd, err), sub)
}

// withoutGoFunctions drops the prefix of a strconv error, `strconv.ParseInt: parsing
// "x": `. The library wraps no error, so only the text is left to look at.
func withoutGoFunctions(text string) string {
	before, call, ok := strings.Cut(text, "strconv.")
	if !ok {
		return text
	}
	_, value, ok := strings.Cut(call, `: parsing "`)
	end := strings.LastIndex(value, `": `)
	if !ok || end < 0 {
		return text
	}
	return before + value[end+len(`": `):]
}

// UnknownFlag rewrites the library's error about an unknown flag: with the flag as the user typed
// it, and our flag for a flag of Docker's, or the nearest known flag. It returns all other errors as they are.
func UnknownFlag(cmd *cli.Command, err error) error {
	if flag, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); unknown {
		dashes, name := "--", strings.TrimLeft(flag, "-")
		if len(name) == 1 {
			dashes = "-"
		}
		return errors.New("unknown flag " + dashes + name + dockerFlag(cmd, name))
	}
	return err
}

// wantArgs checks the number of arguments; most is -1 for no limit.
func wantArgs(cmd *cli.Command, least, most int) error {
	n := cmd.NArg()
	switch {
	case most == 0 && n > 0 && cmd.Category == CategorySandbox:
		return fmt.Errorf("%s takes no arguments, and was given %q", cmd.Name, cmd.Args().First())
	case least == most && n != least:
		return fmt.Errorf("%s: %q requires exactly %d argument(s)", Program, cmd.Name, least)
	case n < least:
		return fmt.Errorf("%s: %q requires a minimum of %d argument(s)", Program, cmd.Name, least)
	case most >= 0 && n > most:
		return fmt.Errorf("%s: %q requires a maximum of %d argument(s)", Program, cmd.Name, most)
	}
	return nil
}

// WithArgs is an action of a command that takes least to most arguments.
func WithArgs(least, most int, do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if err := wantArgs(cmd, least, most); err != nil {
			return err
		}
		return do(ctx, cmd)
	}
}

// WithHint is WithArgs for a command that has its own error for another number of arguments: a hint at its use.
func WithHint(least, most int, hint string, do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if n := cmd.NArg(); n < least || most >= 0 && n > most {
			return errors.New(hint)
		}
		return do(ctx, cmd)
	}
}

// ErrEmptyID says that a container has no name.
var ErrEmptyID = errors.New("container id cannot be empty")
