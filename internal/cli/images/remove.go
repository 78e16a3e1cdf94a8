package images

import (
	"context"
	"errors"
	"io"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func removeCommand() *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Aliases:   []string{"remove"},
		Usage:     "remove images",
		ArgsUsage: "IMAGE...",
		Description: `Removes a name, and the image with its last name. By its id, or the beginning of its id, an image
is removed that has at most one name. An image that a sandbox or a snapshot uses stays. If one of
the images cannot be removed, the others are still removed, and the exit status is 1.

    sandbox-runtime image rm debian:12
    sandbox-runtime image rm 4f1c busybox`,
		Flags:  []cli.Flag{commandline.JSONFlag("print the removed names, images and layers as JSON")},
		Action: commandline.WithHint(1, -1, "say the images, as in: image rm debian:12", remove),
	}
}

func remove(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		all := sandbox.RemovedImages{Untagged: []string{}, Deleted: []string{}, DeletedLayers: []string{}} // in JSON no null
		err := eachImage(cmd, func(name string) error {
			one, err := m.RemoveImage(ctx, name)
			all.Untagged = append(all.Untagged, one.Untagged...)
			all.Deleted = append(all.Deleted, one.Deleted...)
			all.DeletedLayers = append(all.DeletedLayers, one.DeletedLayers...)
			all.Bytes += one.Bytes
			return err
		})
		if cmd.Bool("json") {
			return errors.Join(err, printIndented(cmd.Root().Writer, all))
		}
		return errors.Join(err, printRemoved(cmd.Root().Writer, all))
	})
}

// printRemoved prints as docker image rm does.
func printRemoved(w io.Writer, r sandbox.RemovedImages) error {
	err := commandline.PrintEach(w, r.Untagged, func(name string) string { return "Untagged: " + familiar(name) })
	if err != nil {
		return err
	}
	return commandline.PrintEach(w, append(r.Deleted, r.DeletedLayers...), func(digest string) string { return "Deleted: " + digest })
}
