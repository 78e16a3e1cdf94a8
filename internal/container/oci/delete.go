package oci

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// Delete makes the command delete.
func Delete(onSandbox OnSandbox) *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "remove a container that has stopped, or was never started",
		ArgsUsage: "<container-id>",
		Description: `Removes the container's cgroups and state, and runs its poststop hooks. With --force a
running or paused container is killed first, and the rest of a killed "create" is
removed, too.

    # ` + commandline.Program + ` delete web-1
    # ` + commandline.Program + ` delete --force web-1`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"},
				Usage: "kill it (SIGKILL) if it runs; an id that does not exist is no error"},
		},
		Action: commandline.WithArgs(1, 1, func(ctx context.Context, cmd *cli.Command) error {
			if done, err := onSandbox.run(ctx, cmd); done {
				return err
			}
			return deleteContainer(ctx, cmd, cmd.Bool("force"))
		}),
	}
}

func deleteContainer(ctx context.Context, cmd *cli.Command, force bool) error {
	c, err := commandline.LoadContainer(cmd)
	if errors.Is(err, container.ErrNotExist) || force && errors.Is(err, container.ErrDamaged) {
		c, err = deleteRemains(ctx, cmd, err)
	}
	if force && errors.Is(err, container.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if force {
		err = c.Kill() // before Destroy waits for others: a start of it then ends
	} else {
		err = killUnlessRunning(c)
	}
	if err != nil {
		return err
	}
	return c.Destroy()
}

// deleteRemains removes the rest of a container that does not load, and returns the
// reason; or the container, if a create was still at work.
func deleteRemains(ctx context.Context, cmd *cli.Command, why error) (*container.Container, error) {
	err := container.RemoveRemains(ctx, commandline.StateRoot(cmd), cmd.Args().First())
	switch {
	case errors.Is(err, container.ErrExist):
		return commandline.LoadContainer(cmd)
	case err != nil:
		return nil, err
	case errors.Is(why, container.ErrDamaged):
		return nil, container.ErrNotExist // now
	}
	return nil, why
}

// killUnlessRunning kills a container that has stopped or was never started,
// and keeps others from starting it.
func killUnlessRunning(c *container.Container) error {
	if _, err := c.Lock(); err != nil { // until Destroy, or the end of this process
		return err
	}
	status, err := c.Status()
	if err != nil {
		return err
	}
	if status != container.Stopped && status != container.Created {
		return fmt.Errorf("cannot delete container %s that is not stopped: %s", c.ID(), status)
	}
	return c.Kill()
}
