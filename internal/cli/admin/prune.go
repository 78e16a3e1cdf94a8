package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
)

// Prune makes the command prune.
func Prune() *cli.Command {
	return &cli.Command{
		Name:  "prune",
		Usage: "remove the rest of crashed runs",
		Description: `Finds sandboxes whose processes have ended, by their state and by their objects in the
kernel, and removes all that is left of them. Sandboxes that are up stay; prune is safe
at any time. If something has killed a command that changed such a sandbox, prune
finishes the change.

A stopped sandbox of "up" with files of its own on disk stays, too, and prune prints its
name: "apply" and "save" work on the sandbox, and "down" removes it.`,
		Action: commandline.WithHint(0, 0, "prune takes no arguments; it removes all that is left", prune),
	}
}

func prune(ctx context.Context, cmd *cli.Command) error {
	if err := connection.CheckAccess(cmd); err != nil {
		return err
	}
	l, err := connection.NewLauncher(cmd)
	if err != nil {
		return err
	}
	removed, err := l.Prune(ctx)
	for _, id := range removed {
		fmt.Fprintln(cmd.Root().Writer, "removed", id)
	}
	kept, keptErr := l.Unapplied()
	for _, id := range kept {
		fmt.Fprintf(cmd.Root().ErrWriter, "kept the stopped sandbox %s with files of its own: apply or save its changes, or remove it with: %s down %[1]s\n", id, commandline.ProgramWithDirs(cmd))
	}
	return errors.Join(err, keptErr)
}
