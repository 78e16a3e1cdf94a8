package review

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TellVanished prints the number of new files in the sandbox's own workspace.
func TellVanished(w io.Writer, files *spec.Files, c spec.Config) {
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
	fmt.Fprintf(w, "%s below %s went with the sandbox (to keep such files: --workspace DIR or --overlay DIR)\n",
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
