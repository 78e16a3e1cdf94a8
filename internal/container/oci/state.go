package oci

import (
	"context"
	"encoding/json"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// State makes the command state.
func State(onSandbox OnSandbox) *cli.Command {
	return &cli.Command{
		Name:      "state",
		Usage:     "print the state of a container as JSON",
		ArgsUsage: "<container-id>",
		Description: `The status is one of creating, created, running, paused and stopped; the pid is
that of the container's first process, 0 once all its threads have ended.

    # ` + commandline.Program + ` state web-1 | jq -r .status
    running`,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if done, err := onSandbox.run(ctx, cmd); done {
				return err
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
	return WriteState(cmd, state)
}

// WriteState prints the state of a container.
func WriteState(cmd *cli.Command, state container.State) error {
	data, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	_, err = cmd.Root().Writer.Write(data)
	return err
}
