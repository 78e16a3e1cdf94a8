package main

import (
	"context"
	"encoding/json"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func stateCommand() *cli.Command {
	return &cli.Command{
		Name:      "state",
		Usage:     "print the state of a container as JSON",
		ArgsUsage: "<container-id>",
		Description: `The status is one of creating, created, running, paused and stopped; the pid is
that of the container's first process, 0 once it has ended.

    # ` + commandline.Program + ` state web-1 | jq -r .status
    running`,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if namesListed(cmd) {
				return withSandbox(ctx, cmd, func(box *sandbox.Sandbox) error {
					info, err := box.Info(ctx)
					if err != nil {
						return err
					}
					return writeState(cmd, listedState(info))
				})
			}
			return commandline.OnContainer(1, printState)(ctx, cmd)
		},
	}
}

func printState(_ context.Context, cmd *cli.Command, c *container.Container) error {
	state, err := c.State()
	if err != nil {
		return err
	}
	return writeState(cmd, state)
}

func writeState(cmd *cli.Command, state container.State) error {
	data, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	_, err = cmd.Root().Writer.Write(data)
	return err
}
