package review

import (
	"fmt"

	"github.com/docker/go-units"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// ChangeLine is a change for a person: its kind, its size, its path, and a reason to
// look at it.
func ChangeLine(c sandbox.Change) string {
	size, name := "", streams.Visible(c.Path)
	switch {
	case c.Type == sandbox.TypeDirectory:
		name += "/"
	case c.Type == sandbox.TypeSymlink && c.Link != "":
		name += " -> " + streams.Visible(c.Link)
	case c.Type == sandbox.TypeFile && c.Kind != sandbox.Deleted && !c.ModTime.IsZero():
		size = bytesText(c.Size)
	}
	if c.Was != "" {
		name += fmt.Sprintf(" (was a %s)", c.Was)
	}
	if c.Warning != "" {
		name += "  ! " + streams.Escaped(c.Warning)
	}
	if c.Held {
		name += " (apply holds it back)"
	}
	return fmt.Sprintf("  %-8s %9s  %s", c.Kind, size, name)
}

// bytesText is a number of bytes in the largest unit that leaves a whole number.
func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	return units.CustomSize("%.1f %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"})
}

// ChangeCount is a number of changes with the noun.
func ChangeCount(n int) string {
	if n == 1 {
		return "1 change"
	}
	return fmt.Sprintf("%d changes", n)
}
