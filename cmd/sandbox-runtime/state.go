package main

import (
	"context"
	"encoding/json"

	"github.com/urfave/cli/v3"
)

func stateCommand() *cli.Command {
	return &cli.Command{
		Name:      "state",
		Category:  categoryOCI,
		Usage:     "print the state of a container as JSON",
		ArgsUsage: "<container-id>",
		Action:    printState,
	}
}

func printState(_ context.Context, cmd *cli.Command) error {
	if err := wantArgs(cmd, 1, 1); err != nil {
		return err
	}
	c, err := loadContainer(cmd)
	if err != nil {
		return err
	}
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
