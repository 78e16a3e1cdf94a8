package main

import (
	"context"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func doLocal(ctx context.Context, cmd *cli.Command, config spec.Config) (spec.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := relaySignals(cancel)
	defer signals.stop()
	command := launcher.Command{Args: cmd.Args().Slice(), Capture: cmd.Bool("json")}
	if cmd.Bool("interactive") {
		command.Stdin = os.Stdin
	}
	if !command.Capture {
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
	}
	return launcher.Local(ctx, config, command)
}
