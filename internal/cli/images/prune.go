package images

import (
	"context"
	"fmt"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
)

func pruneCommand() *cli.Command {
	return &cli.Command{
		Name:  "prune",
		Usage: "remove images without a name, and layers of interrupted pulls",
		Description: `Images with a name stay, and so do images that a sandbox or a snapshot uses. Layers stay while a
pull of this user runs.

    sandbox-runtime image prune`,
		Flags:  []cli.Flag{commandline.JSONFlag("print the removed images and layers as JSON")},
		Action: commandline.WithArgs(0, 0, prune),
	}
}

func prune(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		removed, err := m.PruneImages(ctx)
		if err != nil {
			return err
		}
		w := cmd.Root().Writer
		if cmd.Bool("json") {
			return printIndented(w, removed)
		}
		if err := printRemoved(w, removed); err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "Total reclaimed space: %s\n", units.HumanSizeWithPrecision(float64(removed.Bytes), 4))
		return err
	})
}
