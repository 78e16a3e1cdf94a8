package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/containers"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/frontend"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
)

func main() {
	asWhole()
	commandline.Main(func(out *commandline.Reporter) error {
		help := watchHelp()
		err := rootCommand(out, commandsFor(os.Args[1:])).Run(context.Background(), os.Args)
		return cmp.Or(err, *help)
	})
}

// asWhole undoes the marks of a start by the OCI program: the variable and the name of the process.
func asWhole() {
	if os.Getenv(commandline.WholeVariable) == "" {
		return
	}
	_ = os.Unsetenv(commandline.WholeVariable)
	commandline.SetName()
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
			return commandline.Prepare(ctx, cmd, out, connection.CheckNetworkRange)
		},
		Action:                    noCommand,
		Commands:                  commands,
		OnUsageError:              rootUsageError,
		ExitErrHandler:            func(context.Context, *cli.Command, error) {}, // main decides
		DisableSliceFlagSeparator: true,                                          // a comma in --env is the user's
	}
	words := containers.Words()
	for _, c := range root.Commands {
		c.DisableSliceFlagSeparator = true
		c.HideHelpCommand = true // "up help" is a sandbox of this name
		switch {
		case c.OnUsageError != nil:
		case c.Category == commandline.CategorySandbox:
			c.OnUsageError = commandline.SandboxUsageError
		case c.Category == commandline.CategoryOCI:
			c.OnUsageError = words.Usage
		}
		c.OnUsageError = commandline.LogUsageError(out, c.OnUsageError)
		connection.RefuseSocket(c)
		if c.Category == commandline.CategoryOCI && c.Action != nil {
			c.Action = words.Errors(c.Action)
		}
	}
	return root
}

// unknownCommand is the exit status for one, as runc's.
const unknownCommand = 3

func noCommand(_ context.Context, cmd *cli.Command) error {
	if cmd.Bool("version") {
		return oci.PrintVersion(cmd.Writer)
	}
	if name := cmd.Args().First(); name != "" {
		return noSuchCommand(name)
	}
	return cli.ShowRootCommandHelp(cmd)
}

func noSuchCommand(name string) error {
	names := commandline.CommandNames(&cli.Command{Commands: allCommands()})
	return &commandline.ExitError{Code: unknownCommand, Err: fmt.Errorf("unknown command %q%s (see %s --help)",
		name, commandline.CommandLike(names, name), commandline.Program)}
}

// rootUsageError is about the flags before a command. The library also calls it for flags behind an
// unknown command.
func rootUsageError(ctx context.Context, cmd *cli.Command, err error, sub bool) error {
	if name := commandName(os.Args[1:]); name != "" && !isCommand(name) {
		return noSuchCommand(name)
	}
	if oci.SpeaksAsRunc(cmd) {
		return commandline.UsageError(ctx, cmd, err, sub)
	}
	return commandline.SandboxUsageError(ctx, cmd, err, sub)
}
