package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/review"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// tellsVanished says whether a terminal gets the number of files that vanish with the
// sandbox's own workspace.
func tellsVanished(cmd *cli.Command, c spec.Config) bool {
	return review.IsTerminal(os.Stderr) && c.Workspace == "" && !cmd.Bool("json") && !cmd.Bool("local")
}

// tellVanished prints the number of new files in the sandbox's own workspace.
func tellVanished(files *spec.Files, c spec.Config) {
	n := vanished(files, c)
	if n == 0 {
		return
	}
	count := fmt.Sprintf("%d files", n)
	switch {
	case files.Truncated:
		count = "more than " + count
	case n == 1:
		count = "1 file"
	}
	fmt.Fprintf(os.Stderr, "%s below %s went with the sandbox (to keep such files: --workspace DIR or --overlay DIR)\n",
		count, spec.WorkspacePath)
}

// vanished counts the files in the sandbox's own workspace. Files in binds and overlays are
// not its own.
func vanished(files *spec.Files, c spec.Config) (n int) {
	if files == nil {
		return 0
	}
	places := slices.DeleteFunc(slices.Clone(c.Overlays), func(dir string) bool { return dir == "/" })
	for _, b := range c.Binds {
		places = append(places, b.Target)
	}
	for _, path := range files.Created {
		elsewhere := slices.ContainsFunc(places, func(place string) bool { return strings.HasPrefix(path+"/", place+"/") })
		if strings.HasPrefix(path, spec.WorkspacePath+"/") && !elsewhere {
			n++
		}
	}
	return n
}
