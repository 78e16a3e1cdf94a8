package main

import (
	"context"
	"encoding/json"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

func featuresCommand() *cli.Command {
	return &cli.Command{
		Name:     "features",
		Category: categoryOCI,
		Usage:    "print what this binary supports as JSON",
		Description: `The form is that of the OCI runtime specification's features.md. It tells what the
binary can do, whether or not this host can; for that ask "doctor".

    # ` + programName + ` features | jq .linux.mountExtensions`,
		Action: printFeatures,
	}
}

func printFeatures(_ context.Context, cmd *cli.Command) error {
	if err := wantArgs(cmd, 0, 0); err != nil {
		return err
	}
	f := container.Features()
	f.Annotations["io.github.sandbox-runtime.version"] = version
	f.Annotations["io.github.sandbox-runtime.commit"] = commit()
	enc := json.NewEncoder(cmd.Root().Writer)
	enc.SetIndent("", "    ")
	return enc.Encode(f)
}
