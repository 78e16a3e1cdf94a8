package autorun

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

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

//go:embed held.txt
var heldText string

//go:embed marked.txt
var markedText string

// Entries returns the table.
func Entries() []Entry { return slices.Clone(entries()) }

var entries = sync.OnceValue(func() []Entry {
	return slices.Concat(conditional(), parseEntries(heldText, true), parseEntries(markedText, false))
})

func parseEntries(text string, held bool) (all []Entry) {
	for _, g := range hostpaths.ParseGroups(text) {
		for _, pattern := range g.Names {
			all = append(all, Entry{Pattern: pattern, Reason: g.Of, Held: held})
		}
	}
	return all
}

// conditional are the entries that count only where git would use them.
func conditional() []Entry {
	const config = "git reads programs to run from it"
	return []Entry{
		{".git", "git uses its configuration and its hooks", true, WhenMade},
		{"HEAD", "it makes its directory a git repository with a configuration", true, WhenBare},
		{"config", config, true, WhenRepository},
		{"config.worktree", config, true, WhenRepository},
		{"commondir", config, true, WhenRepository},
		{"hooks", "git runs its programs", true, WhenRepository},
	}
}
