package containers

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/sandboxes"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container/oci"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// State makes the command state.
func State() *cli.Command { return oci.State(stateOfSandbox) }

// Delete makes the command delete.
func Delete() *cli.Command { return oci.Delete(deleteSandbox) }

// Exec makes the command exec.
func Exec() *cli.Command { return oci.Exec(sandboxes.ExecFlags(), execOnSandbox) }

func stateOfSandbox(ctx context.Context, cmd *cli.Command) (done bool, err error) {
	if !namesListed(cmd) {
		if !record.Has(commandline.StateRoot(cmd), cmd.Args().First()) {
			return false, nil
		}
		return true, commandline.OnContainer(1, printOwnState)(ctx, cmd)
	}
	return true, connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
		info, err := box.Info(ctx)
		if err != nil {
			return err
		}
		return oci.WriteState(cmd, listedState(info))
	})
}

func execOnSandbox(ctx context.Context, cmd *cli.Command) (done bool, err error) {
	if !namesSandbox(cmd) && !meansSandbox(cmd) {
		return false, nil
	}
	return true, sandboxes.Exec(ctx, cmd)
}

// meansSandbox says that nothing has the name, and that the flags are those for a sandbox.
func meansSandbox(cmd *cli.Command) bool {
	for _, f := range sandboxes.ExecFlags() {
		if cmd.IsSet(f.Names()[0]) {
			_, err := commandline.LoadContainer(cmd)
			return errors.Is(err, container.ErrNotExist)
		}
	}
	return false
}

// deleteSandbox removes more than a container: the sandbox was made by up or do, and goes
// as with down.
func deleteSandbox(ctx context.Context, cmd *cli.Command) (done bool, err error) {
	if !namesSandbox(cmd) {
		return false, nil
	}
	id, force := cmd.Args().First(), cmd.Bool("force")
	return true, connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		box, err := m.Get(ctx, id)
		if m.Inside == nil && err != nil && !force {
			return err
		}
		if err == nil && !force {
			info, err := box.Info(ctx)
			if err != nil {
				return err
			}
			if info.State != sandbox.StateStopped {
				return fmt.Errorf("cannot delete container %s that is not stopped: %s", id, info.State)
			}
		}
		return m.Remove(ctx, id)
	})
}
