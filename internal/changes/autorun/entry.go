package autorun

import "slices"

// An Entry is one row of the table.
type Entry struct {
	// Pattern is a path. One that begins with / is absolute. Any other matches at
	// any depth. A name can have the wildcards of path.Match, and ** stands for any
	// number of names. The pattern matches all paths below, too.
	Pattern string
	// Reason completes the sentence that begins with the path.
	Reason string
	// Held says that the path runs without a question, so apply holds it back. Other
	// paths are only marked.
	Held bool
	// When limits the entry; empty: it always counts.
	When Condition
}

// A Condition limits an entry. Entries with a condition match the path alone, and
// nothing below it, unless the condition says otherwise.
type Condition string

const (
	// WhenMade excludes a directory that the host has and that stays.
	WhenMade Condition = "made or replaced in the sandbox, with all below"
	// WhenBare is a new file at a path at which git itself has none.
	WhenBare Condition = "new, and not one of git's own in .git"
	// WhenRepository is a path beside a file HEAD of the host or of the sandbox. It
	// includes all paths below.
	WhenRepository Condition = "beside a file HEAD"
)

// Entries returns the table.
func Entries() []Entry {
	var all []Entry
	for _, g := range groups() {
		for _, pattern := range g.patterns {
			all = append(all, Entry{Pattern: pattern, Reason: g.reason, Held: g.held, When: g.when})
		}
	}
	return all
}

// A group is entries that differ in the pattern alone.
type group struct {
	held     bool
	reason   string
	when     Condition
	patterns []string
}

func groups() []group {
	return slices.Concat(gitGroups(), shellGroups(), sessionGroups(), editorGroups(), startGroups(), systemGroups(), markedGroups())
}
