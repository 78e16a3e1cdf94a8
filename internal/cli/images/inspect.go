package images

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "describe images in JSON",
		ArgsUsage: "IMAGE...",
		Description: `Prints a JSON array with one object for each image: its id, names, layers, and in "config" the
config as the image has it. Name an image by its name, its id, or the beginning of its id.

    sandbox-runtime image inspect debian:12
    sandbox-runtime image inspect debian:12 | jq '.[0].config.config.Env'`,
		Flags:  []cli.Flag{commandline.JSONFlag("print JSON, which is the default")},
		Action: commandline.WithHint(1, -1, "say the images, as in: image inspect debian:12", inspect),
	}
}

func inspect(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		all := []sandbox.Image{} // in JSON no null
		err := eachImage(cmd, func(name string) error {
			image, err := m.Image(ctx, name)
			if err == nil {
				all = append(all, image)
			}
			return err
		})
		return errors.Join(err, printIndented(cmd.Root().Writer, all))
	})
}
