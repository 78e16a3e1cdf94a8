package hostpaths

import "strings"

// A Group is paths of one kind.
type Group struct {
	Of    string
	Names []string
}

// ParseGroups returns the groups of a list. A line "[KIND]" begins a group, and each other line is a name. Empty lines
// and lines that begin with # say nothing. The text is a part of this program: a name before the first group panics.
func ParseGroups(text string) []Group {
	var all []Group
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "", line[0] == '#':
		case line[0] == '[':
			all = append(all, Group{Of: strings.Trim(line, "[]")})
		default:
			last := &all[len(all)-1]
			last.Names = append(last.Names, line)
		}
	}
	return all
}
