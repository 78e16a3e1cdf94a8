package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

func deleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Category:  categoryOCI,
		Usage:     "remove a container that has stopped, or was never started",
		ArgsUsage: "<container-id>",
		Description: `Removes the container's cgroups and state and runs its poststop hooks. With
--force a running or paused one is killed first, and what a killed "create" left
is removed too.

    # ` + programName + ` delete web-1
    # ` + programName + ` delete --force web-1`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"},
				Usage: "kill it (SIGKILL) if it runs; an id that does not exist is no error"},
		},
		Action: deleteContainer,
	}
}

func deleteContainer(_ context.Context, cmd *cli.Command) error {
	if err := wantArgs(cmd, 1, 1); err != nil {
		return err
	}
	id, force := cmd.Args().First(), cmd.Bool("force")
	c, err := loadContainer(cmd)
	if errors.Is(err, container.ErrNotExist) {
		if rerr := container.RemoveRemains(stateRoot(cmd), id); rerr != nil {
			return errors.Join(err, rerr)
		}
		if force {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	if !force {
		status, err := c.Status()
		if err != nil {
			return err
		}
		if status != container.Stopped && status != container.Created {
			return fmt.Errorf("cannot delete container %s that is not stopped: %s", id, status)
		}
	}
	if err := c.Kill(); err != nil {
		return err
	}
	return c.Destroy()
}
