package oci

import (
	"context"
	"encoding/json"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
)

// Features makes the command features.
func Features() *cli.Command {
	return &cli.Command{
		Name:  "features",
		Usage: "print the features of this binary as JSON",
		Description: `The form is that of the OCI runtime specification's features.md. It describes the
binary, not this host; "doctor" describes the host.

    # ` + commandline.Program + ` features | jq .linux.mountExtensions`,
		Action: commandline.WithArgs(0, 0, printFeatures),
	}
}

func printFeatures(_ context.Context, cmd *cli.Command) error {
	f := container.Features()
	f.Annotations["io.github.sandbox-runtime.version"] = version
	f.Annotations["io.github.sandbox-runtime.commit"] = commit()
	enc := json.NewEncoder(cmd.Root().Writer)
	enc.SetIndent("", "    ")
	return enc.Encode(f)
}
