package commandline

import (
	"strings"

	"github.com/urfave/cli/v3"
)

// nearest returns the name that is most like typed, or "" if none is like it.
func nearest(names []string, typed string) string {
	best, fewest := "", len(typed)/3+1
	for _, name := range names {
		edits := distance(name, typed)
		if strings.HasPrefix(name, typed) && len(typed) > 1 {
			edits = 0
		}
		if edits < fewest || edits == fewest && best == "" {
			best, fewest = name, edits
		}
	}
	return best
}

// distance is the Levenshtein distance: the number of letters to insert, remove or replace to
// turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal, row[j+1] = row[j+1], min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// DidYouMean is the end of a sentence about an unknown name. It names the nearest known name, with
// mark before it, or is empty.
func DidYouMean(names []string, typed, mark string) string {
	if name := nearest(names, typed); name != "" {
		return "; did you mean " + mark + name + "?"
	}
	return ""
}

// FlagNames are the long names of the flags that the help shows.
func FlagNames(flags []cli.Flag) []string {
	var names []string
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && v.IsVisible() {
			names = append(names, f.Names()[0])
		}
	}
	return names
}

// CommandNames are the names of the commands that the help shows.
func CommandNames(root *cli.Command) []string {
	var names []string
	for _, c := range root.VisibleCommands() {
		names = append(names, c.Name)
	}
	return names
}
