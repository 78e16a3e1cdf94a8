package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func undoCommand() *cli.Command {
	return &cli.Command{
		Name:      "undo",
		Usage:     "take back what the last transactions have changed",
		ArgsUsage: "NAME [N]",
		Category:  categorySandbox,
		Description: `The files of the sandbox become what they were before the last command, or the
last N, of "exec --transaction" that succeeded. Where others have changed the same
files since, that one and those before it stay, and the status is 1.

    sandbox-runtime exec --transaction box sh -c 'make test'
    sandbox-runtime undo box`,
		Action: undo,
	}
}

func undo(ctx context.Context, cmd *cli.Command) (err error) {
	if n := cmd.NArg(); n != 1 && n != 2 {
		return errors.New("say the sandbox, and how many transactions if it is not one")
	}
	n := 1
	if text := cmd.Args().Get(1); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			return fmt.Errorf("%q is no number of transactions; write it as in: undo box 2", text)
		}
	}
	return withSandbox(ctx, cmd, func(box *sandbox.Sandbox) error { return box.Undo(ctx, n) })
}
