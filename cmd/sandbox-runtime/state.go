package main

import (
	"context"
	"encoding/json"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

func stateCommand() *cli.Command {
	return &cli.Command{
		Name:      "state",
		Usage:     "print the state of a container as JSON",
		ArgsUsage: "<container-id>",
		Description: `The status is one of creating, created, running, paused and stopped; the pid is
that of the container's first process, 0 once it has ended.

    # ` + programName + ` state web-1 | jq -r .status
    running`,
		Action: onContainer(1, printState),
	}
}

func printState(_ context.Context, cmd *cli.Command, c *container.Container) error {
	state, err := c.State()
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	_, err = cmd.Root().Writer.Write(data)
	return err
}
