package images

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func listCommand() *cli.Command {
	return &cli.Command{
		Name:    "ls",
		Aliases: []string{"list"},
		Usage:   "list the images of this user",
		Description: `Prints one line for each name of an image. The size is that of the uncompressed layers; a layer
that several images have takes its space once. With --json each line is one object.

    sandbox-runtime image ls
    sandbox-runtime image ls --json | jq -r '.references[].name'`,
		Flags: []cli.Flag{
			commandline.QuietFlag("print only the ids"),
			&cli.BoolFlag{Name: "no-trunc", Usage: "print whole ids"},
			commandline.JSONFlag("print one JSON object for each image"),
		},
		Action: commandline.WithArgs(0, 0, list),
	}
}

func list(ctx context.Context, cmd *cli.Command) error {
	return connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		all, err := m.Images(ctx)
		if err != nil {
			return err
		}
		w := cmd.Root().Writer
		switch {
		case cmd.Bool("json"):
			return commandline.PrintEachJSON(w, all)
		case cmd.Bool("quiet"):
			return commandline.PrintEach(w, all, func(i sandbox.Image) string { return idText(i.ID, cmd.Bool("no-trunc")) })
		}
		for _, i := range all {
			if i.Damaged != "" {
				fmt.Fprintf(cmd.Root().ErrWriter, "image %s is damaged: %s; pull the image again\n", shortID(i.ID), i.Damaged)
			}
		}
		return printImages(w, all, cmd.Bool("no-trunc"))
	})
}

func printImages(w io.Writer, all []sandbox.Image, whole bool) error {
	t := tabwriter.NewWriter(w, 0, 1, 3, ' ', 0)
	fmt.Fprint(t, "REPOSITORY\tTAG\tIMAGE ID\tCREATED\tSIZE\n")
	for _, i := range all {
		names := i.References
		if len(names) == 0 {
			names = []sandbox.ImageReference{{}}
		}
		for _, r := range names {
			repository, tag := noName, noName
			if r.Name != "" {
				repository, tag = repositoryAndTag(r.Name)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", repository, tag, idText(i.ID, whole), createdText(i.Created),
				units.HumanSizeWithPrecision(float64(i.Size), 3))
		}
	}
	return t.Flush()
}

func idText(id string, whole bool) string {
	if whole {
		return id
	}
	return shortID(id)
}

// createdText is a time as docker image ls prints it.
func createdText(t time.Time) string {
	if t.IsZero() {
		return "N/A"
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}
