package review

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/docker/go-units"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// ChangeLine is a change for a person: its kind, its size, its path, and a reason to
// look at it.
func ChangeLine(c sandbox.Change) string {
	size, name := "", visible(c.Path)
	switch {
	case c.Type == sandbox.TypeDirectory:
		name += "/"
	case c.Type == sandbox.TypeSymlink && c.Link != "":
		name += " -> " + visible(c.Link)
	case c.Type == sandbox.TypeFile && c.Kind != sandbox.Deleted && !c.ModTime.IsZero():
		size = bytesText(c.Size)
	}
	if c.Was != "" {
		name += fmt.Sprintf(" (was a %s)", c.Was)
	}
	if c.Warning != "" {
		name += "  ! " + Escaped(c.Warning)
	}
	if c.Held {
		name += " (apply holds it back)"
	}
	return fmt.Sprintf("  %-8s %9s  %s", c.Kind, size, name)
}

// visible is a text that the sandbox has chosen, quoted if a terminal would take a part of
// it for something else than text.
func visible(s string) string {
	plain := utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
	if plain {
		return s
	}
	return strconv.Quote(s)
}

// Escaped is a text of several lines with names that the sandbox may have chosen.
// Characters that a terminal might obey are escaped as in Go.
func Escaped(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			b.WriteString(strings.Trim(strconv.Quote(s[:n]), `"`))
		}
		s = s[n:]
	}
	return b.String()
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
