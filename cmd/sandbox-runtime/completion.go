package main

import (
	"context"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/containers"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/images"
)

// namesFor are the names that an argument of the command may be, after so many others.
func namesFor(ctx context.Context, cmd *cli.Command, before int) (names []string) {
	if strings.HasPrefix(cmd.ArgsUsage, "IMAGE") || cmd.ArgsUsage == "[IMAGE...]" {
		return images.Names(ctx, cmd)
	}
	several := cmd.Name == "down" || cmd.Name == "stats"
	if before > 0 && !several {
		return nil
	}
	root := cmd.Root()
	if cmd.Category == commandline.CategoryOCI {
		if slices.Contains([]string{"create", "run", "restore", "spec", "features", "list"}, cmd.Name) {
			return nil
		}
		if socket, err := connection.Socket(root); err != nil || socket == "" {
			names, _ = containers.IDs(commandline.StateRoot(root)) // a completion has no place for an error
			return names
		}
	} else if !strings.HasPrefix(cmd.ArgsUsage, "NAME") || cmd.Name == "up" {
		return nil
	}
	_ = connection.WithSandboxes(ctx, root, func(m *connection.Sandboxes) error { // as above
		list, err := m.List(ctx)
		for _, info := range list {
			name := info.ID
			if cmd.Name == "cp" {
				name += ":"
			}
			names = append(names, name)
		}
		return err
	})
	return names
}
