package main

import (
	"context"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
)

// namesFor are the names that an argument of the command may be, after so many others.
func namesFor(ctx context.Context, cmd *cli.Command, before int) (names []string) {
	if strings.HasPrefix(cmd.ArgsUsage, "IMAGE") || cmd.ArgsUsage == "[IMAGE...]" {
		return imageNames(ctx, cmd)
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
		if socket, err := socketOf(root); err != nil || socket == "" {
			names, _ = listedIDs(commandline.StateRoot(root)) // a completion has no place for an error
			return names
		}
	} else if !strings.HasPrefix(cmd.ArgsUsage, "NAME") || cmd.Name == "up" {
		return nil
	}
	_ = withSandboxes(ctx, root, func(m *sandboxes) error { // as above
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

// imageNames are the names of the images of this user.
func imageNames(ctx context.Context, cmd *cli.Command) (names []string) {
	_ = withSandboxes(ctx, cmd.Root(), func(m *sandboxes) error { // a completion has no place for an error
		all, err := m.Images(ctx)
		for _, i := range all {
			for _, r := range i.References {
				names = append(names, familiar(r.Name))
			}
		}
		return err
	})
	return names
}
