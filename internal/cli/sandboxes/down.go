package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Down makes the command down.
func Down() *cli.Command {
	return &cli.Command{
		Name:      "down",
		Usage:     "end all that runs in sandboxes, and remove them",
		ArgsUsage: "NAME...",
		Description: `Each sandbox is removed, in any state. The workspace stays as it is. If a sandbox does
not exist or cannot be removed, the others are still removed, and the exit status is 1.

    sandbox-runtime down box
    sandbox-runtime down box-1 box-2`,
		Action: commandline.WithHint(1, -1, "say the names of the sandboxes; list shows all", down),
	}
}

func down(ctx context.Context, cmd *cli.Command) error {
	connection.WakeCgroups(cmd)
	return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		errs := make([]error, cmd.NArg())
		var removing sync.WaitGroup
		for i, name := range cmd.Args().Slice() {
			removing.Go(func() { errs[i] = removeSandbox(ctx, cmd, m, name) })
		}
		removing.Wait()
		return errors.Join(errs...)
	})
}

// removeSandbox removes one sandbox. A missing sandbox is an error here: the name may be wrong.
func removeSandbox(ctx context.Context, cmd *cli.Command, m *connection.Sandboxes, name string) error {
	if m.Inside == nil {
		if _, err := m.Get(ctx, name); err != nil {
			return err
		}
		return m.Remove(ctx, name)
	}
	root := commandline.StateRoot(cmd)
	if record.Has(root, name) {
		return m.Remove(ctx, name)
	}
	if traced, err := m.Inside.Traced(name); err != nil || traced {
		return errors.Join(err, m.Inside.Remove(ctx, name))
	}
	if _, err := container.Load(root, name); err == nil {
		return fmt.Errorf("%s is a container, not a sandbox; remove it with: %s delete --force %s", name, commandline.ProgramWithDirs(cmd), name)
	}
	return &sandbox.Error{ID: name, Err: sandbox.ErrNotFound}
}
