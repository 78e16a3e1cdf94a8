package images

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "compare images on disk with their digests",
		ArgsUsage: "[IMAGE...]",
		Description: `Reads all layers of the images, without names of all images of this user. Each layer must have its
digest, and the index that is made of the layers must be the one on disk. A damaged image is not
used any more until it is pulled again. The exit status is 1 if an image is damaged.

    sandbox-runtime image verify
    sandbox-runtime image verify debian:12`,
		Flags: []cli.Flag{
			commandline.QuietFlag("print only errors"),
			commandline.JSONFlag("print one JSON object for each image"),
		},
		Action: verify,
	}
}

// verifyReport is the result for one image in JSON.
type verifyReport struct {
	Image string `json:"image"`
	Good  bool   `json:"good"`
	Error string `json:"error,omitempty"`
}

func verify(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		names := cmd.Args().Slice()
		if len(names) == 0 {
			all, err := m.Images(ctx)
			if err != nil {
				return err
			}
			for _, i := range all {
				names = append(names, i.ID)
			}
		}
		var failed []error
		for _, name := range names {
			err := m.VerifyImage(ctx, name)
			failed = append(failed, err, printVerified(cmd, name, err))
		}
		return errors.Join(failed...)
	})
}

func printVerified(cmd *cli.Command, name string, failed error) error {
	w := cmd.Root().Writer
	report := verifyReport{Image: name, Good: failed == nil}
	if failed != nil {
		report.Error = failed.Error()
	}
	if cmd.Bool("json") {
		return commandline.PrintEachJSON(w, []verifyReport{report})
	}
	var err error
	if report.Good && !cmd.Bool("quiet") {
		_, err = fmt.Fprintf(w, "%s: verified\n", name)
	}
	return err
}
