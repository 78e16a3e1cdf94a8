package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/frontend"
)

const programName = "sandbox-runtime"

// main keeps the process's first thread to itself. This program and libcontainer leave
// threads in the mount namespaces of sandboxes, for the Go runtime to end. The Go runtime
// does not end the first thread, which would keep the mounts and the file systems below
// them.
func main() {
	runtime.LockOSThread()
	code := make(chan int)
	go func() { code <- run() }()
	os.Exit(<-code)
}

func run() int {
	out := newReporter(os.Stderr)
	help := watchHelp()
	err := rootCommand(out).Run(context.Background(), os.Args)
	if err == nil {
		err = *help
	}
	code, message := exitCode(err)
	if message != nil {
		out.fatal(message)
	}
	return code
}

// watchHelp returns the place of the error of writing a help text, which the library drops.
func watchHelp() *error {
	failed := new(error)
	cli.HelpPrinter = func(w io.Writer, text string, data any) {
		checked := &checkedWriter{w: w}
		cli.DefaultPrintHelp(checked, text, data)
		*failed = checked.err
	}
	return failed
}

// A checkedWriter keeps the first error.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.err = cmp.Or(c.err, err)
	return n, err
}

// categoryOCI is the heading of the OCI commands in help. Their errors are worded
// and logged for the daemons that call them.
const categoryOCI = "OCI commands"

// categorySandbox is the heading of the commands for people.
const categorySandbox = "Sandboxes"

func rootCommand(out *reporter) *cli.Command {
	root := &cli.Command{
		Name:  programName,
		Usage: "runs untrusted programs in sandboxes, and OCI containers as runc does",
		Description: `One command in a sandbox of its own, from the host's programs, without network:

    sandbox-runtime do -- python3 -c 'print(6 * 7)'
    sandbox-runtime do --workspace . --memory 512m --timeout 1m -- make test

A sandbox that stays up, for one command after the other:

    sandbox-runtime up --workspace . box
    sandbox-runtime exec box make test
    sandbox-runtime down box

An OCI container, from a bundle: a directory with a "` + frontend.ConfigName + `", which "spec"
writes, and the root file system that it names:

    sandbox-runtime run --bundle DIR web-1

In place of runc under Docker, containerd or podman: see "register --help".
To check this host, and the isolation of a sandbox:

    sandbox-runtime doctor`,
		Flags:       globalFlags(),
		HideVersion: true, // the flag is ours, for more than one line
		Before:      func(ctx context.Context, cmd *cli.Command) (context.Context, error) { return prepare(ctx, cmd, out) },
		Action:      noCommand,
		Commands: slices.Concat(
			inCategory(categorySandbox,
				doCommand(), upCommand(), downCommand(), cpCommand(), changesCommand(), diffCommand(), applyCommand(),
				saveCommand(), attachCommand(), logsCommand(), inspectCommand(), statsCommand(), undoCommand(), snapshotCommand(), discardCommand(),
				launcherCommand(), pruneCommand(), doctorCommand(), registerCommand(), completionCommand(),
			),
			inCategory(categoryOCI,
				createCommand(), startCommand(), runCommand(), stateCommand(), killCommand(),
				deleteCommand(), execCommand(), listCommand(), featuresCommand(), specCommand(),
				pauseCommand(), resumeCommand(), psCommand(), eventsCommand(), updateCommand(),
				checkpointCommand(), restoreCommand(),
			),
			[]*cli.Command{doctorProbeCommand()},
		),
		OnUsageError:              usageError,
		ExitErrHandler:            func(context.Context, *cli.Command, error) {}, // main decides
		DisableSliceFlagSeparator: true,                                          // a comma in --env is the user's
	}
	for _, c := range root.Commands {
		c.DisableSliceFlagSeparator = true
		c.HideHelpCommand = true // "up help" is a sandbox of this name
		if c.OnUsageError == nil && c.Category == categorySandbox {
			c.OnUsageError = sandboxUsageError
		}
		c.OnUsageError = logUsageError(out, c.OnUsageError)
		if reason := withoutSocket[c.Name]; reason != "" {
			c.Action = refusingSocket(c.Action, reason)
		}
		if c.Category == categoryOCI && c.Action != nil {
			c.Action = namingWhatIsMissing(c.Action)
		}
	}
	return root
}

func inCategory(category string, commands ...*cli.Command) []*cli.Command {
	for _, c := range commands {
		c.Category = category
	}
	return commands
}

// logUsageError directs the log as the global flags say, to which prepare does
// not come when a command's flags are wrong, and has word, if any, word the error.
func logUsageError(out *reporter, word cli.OnUsageErrorFunc) cli.OnUsageErrorFunc {
	if word == nil {
		word = usageError
	}
	return func(ctx context.Context, cmd *cli.Command, err error, isSub bool) error {
		if oerr := out.openFor(cmd.Root()); oerr != nil {
			err = oerr
		}
		return word(ctx, cmd, err, isSub)
	}
}

// usageError gives the mistake in one line; the library would add the whole help text.
func usageError(_ context.Context, cmd *cli.Command, err error, _ bool) error {
	return fmt.Errorf("%s (see %s --help)", withoutGoFunctions(err.Error()), cmd.FullName())
}

// sandboxUsageError is usageError with a flag as it was typed, for people.
func sandboxUsageError(ctx context.Context, cmd *cli.Command, err error, sub bool) error {
	return usageError(ctx, cmd, unknownFlag(cmd, err), sub)
}

// withoutGoFunctions drops the prefix of a strconv error, `strconv.ParseInt: parsing
// "x": `. The command-line library wraps no error, so that only the text is left.
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

// namingWhatIsMissing is an action that answers a person with the name that nothing has. A caller
// that gives one of runc's flags for logs gets runc's words.
func namingWhatIsMissing(do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		err := do(ctx, cmd)
		if err == nil || speaksAsRunc(cmd) || !isMissing(cmd, err) {
			return err
		}
		code, _ := exitCode(err)
		return &exitError{code: code, plain: true, err: missing(ctx, cmd)}
	}
}

// unknownCommand is the exit status for one, as runc's.
const unknownCommand = 3

func noCommand(_ context.Context, cmd *cli.Command) error {
	if cmd.Bool("version") {
		checked := &checkedWriter{w: cmd.Writer}
		printVersion(checked)
		return checked.err
	}
	if name := cmd.Args().First(); name != "" {
		return &exitError{code: unknownCommand, err: fmt.Errorf("unknown command %q%s (see %s --help)",
			name, didYouMean(commandNames(cmd), name, ""), programName)}
	}
	return cli.ShowRootCommandHelp(cmd)
}

// wantArgs checks the number of arguments; most is -1 for no limit.
func wantArgs(cmd *cli.Command, least, most int) error {
	n := cmd.NArg()
	switch {
	case most == 0 && n > 0 && cmd.Category == categorySandbox:
		return fmt.Errorf("%s takes no arguments, and was given %q", cmd.Name, cmd.Args().First())
	case least == most && n != least:
		return fmt.Errorf("%s: %q requires exactly %d argument(s)", programName, cmd.Name, least)
	case n < least:
		return fmt.Errorf("%s: %q requires a minimum of %d argument(s)", programName, cmd.Name, least)
	case most >= 0 && n > most:
		return fmt.Errorf("%s: %q requires a maximum of %d argument(s)", programName, cmd.Name, most)
	}
	return nil
}

// withArgs is an action of a command that takes least to most arguments.
func withArgs(least, most int, do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		if err := wantArgs(cmd, least, most); err != nil {
			return err
		}
		return do(ctx, cmd)
	}
}

var errEmptyID = errors.New("container id cannot be empty")
