package main

import (
	"context"
	"errors"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// onlyIsolated are flags whose promise nothing on the host would keep.
func onlyIsolated() []string {
	return []string{"rootfs", "bind", "user", "hostname", "seccomp", "network", "tty"}
}

func doLocal(ctx context.Context, cmd *cli.Command, config spec.Config) (spec.Result, error) {
	for _, name := range onlyIsolated() {
		if cmd.IsSet(name) {
			return spec.Result{}, errors.New("--" + name + " and --local do not go together: nothing on the host would hold it")
		}
	}
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
