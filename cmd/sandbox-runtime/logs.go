package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func logsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show the kept output of detached commands",
		ArgsUsage: "NAME [EXEC]",
		Description: `Prints the output that the sandbox has kept of one detached command, or of all of them,
each below a line with its id. The result stays for "attach", after which nothing is kept.

    sandbox-runtime exec --detach box make test
    sandbox-runtime logs box
    sandbox-runtime logs --follow box EXEC`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with new output until the command ends"},
		},
		Action: logs,
	}
}

func logs(ctx context.Context, cmd *cli.Command) error {
	if n := cmd.NArg(); n != 1 && n != 2 {
		return errors.New("say the sandbox, and the command if it is not all, as in: logs box")
	}
	return withSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		if exec := cmd.Args().Get(1); cmd.NArg() == 2 {
			return box.Logs(ctx, exec, os.Stdout, os.Stderr, cmd.Bool("follow"))
		}
		execs, err := box.Execs(ctx)
		if err != nil {
			return err
		}
		execs = slices.DeleteFunc(execs, func(e sandbox.ExecInfo) bool { return !e.Detached })
		switch {
		case len(execs) == 0:
			fmt.Fprintf(cmd.Root().ErrWriter, "%s keeps no output: it has no detached command (exec --detach starts one)\n", box.ID())
		case len(execs) > 1 && cmd.Bool("follow"):
			return fmt.Errorf("%s has %d detached commands; say which one to follow (%s ps --execs %s)", box.ID(), len(execs), commandline.ProgramWithDirs(cmd), box.ID())
		}
		return logsOf(ctx, cmd, box, execs)
	})
}

// logsOf prints the output of commands. A single command has no heading.
func logsOf(ctx context.Context, cmd *cli.Command, box *sandbox.Sandbox, execs []sandbox.ExecInfo) error {
	for _, e := range execs {
		if len(execs) > 1 {
			if _, err := fmt.Fprintf(os.Stdout, "==> %s %s <==\n", e.ID, commandline.ShellWords(e.Args)); err != nil {
				return err
			}
		}
		err := box.Logs(ctx, e.ID, os.Stdout, os.Stderr, cmd.Bool("follow"))
		if len(execs) > 1 && errors.Is(err, sandbox.ErrNotFound) {
			continue // a client has taken its result this moment
		}
		if err != nil {
			return err
		}
	}
	return nil
}
