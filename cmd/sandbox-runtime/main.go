package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/frontend"
)

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
	out := commandline.NewReporter(os.Stderr)
	help := watchHelp()
	err := rootCommand(out, commandsFor(os.Args[1:])).Run(context.Background(), os.Args)
	if err == nil {
		err = *help
	}
	code, message := commandline.ExitCode(err)
	if message != nil {
		out.Fatal(message)
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

func rootCommand(out *commandline.Reporter, commands []*cli.Command) *cli.Command {
	root := &cli.Command{
		Name:  commandline.Program,
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
		Flags:       commandline.GlobalFlags(),
		HideVersion: true, // the flag is ours, for more than one line
		Before: func(ctx context.Context, cmd *cli.Command) (context.Context, error) {
			return commandline.Prepare(ctx, cmd, out)
		},
		Action:                    noCommand,
		Commands:                  commands,
		OnUsageError:              commandline.UsageError,
		ExitErrHandler:            func(context.Context, *cli.Command, error) {}, // main decides
		DisableSliceFlagSeparator: true,                                          // a comma in --env is the user's
	}
	for _, c := range root.Commands {
		c.DisableSliceFlagSeparator = true
		c.HideHelpCommand = true // "up help" is a sandbox of this name
		if c.OnUsageError == nil && c.Category == commandline.CategorySandbox {
			c.OnUsageError = commandline.SandboxUsageError
		}
		c.OnUsageError = commandline.LogUsageError(out, c.OnUsageError)
		if reason := withoutSocket[c.Name]; reason != "" {
			c.Action = refusingSocket(c.Action, reason)
		}
		if c.Category == commandline.CategoryOCI && c.Action != nil {
			c.Action = namingWhatIsMissing(c.Action)
		}
	}
	return root
}

// namingWhatIsMissing is an action that answers a person with the name that nothing has. A caller
// that gives one of runc's flags for logs gets runc's words.
func namingWhatIsMissing(do cli.ActionFunc) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		err := do(ctx, cmd)
		if err == nil || speaksAsRunc(cmd) || !isMissing(cmd, err) {
			return err
		}
		code, _ := commandline.ExitCode(err)
		return &commandline.ExitError{Code: code, Plain: true, Err: missing(ctx, cmd)}
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
		names := commandline.CommandNames(&cli.Command{Commands: allCommands()})
		return &commandline.ExitError{Code: unknownCommand, Err: fmt.Errorf("unknown command %q%s (see %s --help)",
			name, commandline.DidYouMean(names, name, ""), commandline.Program)}
	}
	return cli.ShowRootCommandHelp(cmd)
}
