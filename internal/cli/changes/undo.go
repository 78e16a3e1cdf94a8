package changes

import (
	"context"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Undo makes the command undo.
func Undo() *cli.Command {
	return &cli.Command{
		Name:      "undo",
		Usage:     "take back the changes of the last transactions",
		ArgsUsage: "NAME [N]",
		Description: `The files of the sandbox become as they were before the last successful command of
"exec --transaction", or the last N. If other commands have changed the same files
since, that transaction and all older ones stay, and the exit status is 1.

    sandbox-runtime exec --transaction box sh -c 'make test'
    sandbox-runtime undo box`,
		Action: commandline.WithHint(1, 2, "say the sandbox, and how many transactions if it is not one", undo),
	}
}

func undo(ctx context.Context, cmd *cli.Command) (err error) {
	n := 1
	if text := cmd.Args().Get(1); text != "" {
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			return fmt.Errorf("%q is no number of transactions; write it as in: undo box 2", text)
		}
	}
	return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		if err := box.Undo(ctx, n); err != nil {
			return err
		}
		what := "the last transaction"
		if n > 1 {
			what = fmt.Sprintf("the last %d transactions", n)
		}
		fmt.Fprintf(cmd.Root().ErrWriter, "took back %s of %s\n", what, box.ID())
		return nil
	})
}
