package autorun

import (
	"path"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Mark is a reason to look at a path.
type Mark struct {
	// Reason completes the sentence that begins with the path.
	Reason string
	// Held says that the path runs without a question.
	Held bool
}

// A Marker finds the marks of changes. It can be used by several goroutines at once.
type Marker struct {
	// byName holds the patterns by their first name. byEnding holds those whose first
	// name begins with a wildcard by its extension, byByte those with another wildcard
	// in it by its first byte. Absolute patterns are apart.
	byName   map[string][]*pattern
	byEnding map[string][]*pattern
	byByte   map[byte][]*pattern
	absolute map[string][]*pattern

	repository func(dir string) bool
}

// New makes a Marker of the table and of more entries. repository tells whether the
// host or the sandbox has a file HEAD in a directory; nil: there is none.
func New(repository func(dir string) bool, more ...Entry) *Marker {
	return markerOf(append(Entries(), more...), repository)
}

func markerOf(entries []Entry, repository func(dir string) bool) *Marker {
	m := &Marker{
		byName: map[string][]*pattern{}, byEnding: map[string][]*pattern{}, byByte: map[byte][]*pattern{},
		absolute: map[string][]*pattern{}, repository: repository,
	}
	for _, e := range entries {
		p := compile(e)
		switch first := p.parts[0]; {
		case strings.HasPrefix(e.Pattern, "/"): // its first name has no wildcard
			m.absolute[first.text] = append(m.absolute[first.text], p)
		case first.wild && first.prefix == "":
			m.byEnding[path.Ext(first.suffix)] = append(m.byEnding[path.Ext(first.suffix)], p)
		case first.wild:
			m.byByte[first.text[0]] = append(m.byByte[first.text[0]], p)
		default:
			m.byName[first.text] = append(m.byName[first.text], p)
		}
	}
	return m
}

// Path returns the mark of a change by its absolute path on the host. The path in the
// change does not count. An entry that is held counts for more than one that is only
// marked, and of several the first of the table counts. A deleted path is never held: it
// does not run.
func (m *Marker) Path(name string, c spec.Change) (Mark, bool) {
	s := search{c: c, path: name, names: names(strings.Trim(name, "/")), repository: m.repository}
	s.comparePatterns(m.absolute[s.names[0]], 0)
	for i, first := range s.names {
		if first == "" {
			continue
		}
		s.comparePatterns(m.byName[first], i)
		if ending := path.Ext(first); ending != "" {
			s.comparePatterns(m.byEnding[ending], i)
		}
		s.comparePatterns(m.byByte[first[0]], i)
	}
	if s.best == nil {
		return Mark{}, false
	}
	mark := Mark{Reason: s.best.Reason, Held: s.best.Held && c.Kind != spec.Deleted}
	if s.above {
		mark.Reason += " (at " + s.best.Pattern + ")"
	}
	return mark, true
}

// A search is the state of one look at the table.
type search struct {
	c          spec.Change
	path       string
	names      []string
	repository func(dir string) bool

	best  *pattern
	above bool
}

// comparePatterns compares patterns with the path from one of its names on.
func (s *search) comparePatterns(patterns []*pattern, from int) {
	for _, p := range patterns {
		if s.best != nil && (s.best.Held || !p.Held) {
			continue
		}
		f := matchParts(p.parts, s.names[from:])
		if f == fitNone || f == fitAbove && !s.standsForBelow() || !s.conditionHolds(p, f, from) {
			continue
		}
		s.best, s.above = p, f == fitAbove
	}
}

// standsForBelow tells whether the change is about all paths below its own, which
// have no changes of their own: a link leads them elsewhere.
func (s *search) standsForBelow() bool {
	return s.c.Type == spec.TypeSymlink || s.c.Kind == spec.Deleted && s.c.Type == spec.TypeDirectory
}

// conditionHolds tells whether the condition of a pattern holds.
func (s *search) conditionHolds(p *pattern, f fit, from int) bool {
	switch p.When {
	case "":
		return true
	case WhenMade:
		return f == fitAt && (Made(s.c) || s.c.Type != spec.TypeDirectory || s.c.Kind == spec.Deleted)
	case WhenBare:
		// The name counts with its case: head is a usual name of a program.
		isNew := s.c.Kind == spec.Created || s.c.Was != ""
		return f == fitAt && isNew && path.Base(s.path) == "HEAD" && !s.inGit()
	case WhenRepository:
		return f != fitAbove && s.repository != nil && s.repository(s.directory(from))
	}
	return true // fail closed
}

// inGit tells whether a path is one at which git itself has a file HEAD: below a
// directory whose name ends in .git. The table holds back configuration and hooks beside
// each of these. At any other path in that directory HEAD makes a repository of its own.
func (s *search) inGit() bool {
	for i, name := range slices.Backward(s.names[:len(s.names)-1]) {
		if strings.HasSuffix(name, ".git") {
			return gitHasHead(s.names[i+1:])
		}
	}
	return false
}

// gitHasHead tells whether git has a file HEAD at a path, which is relative to a
// repository.
func gitHasHead(names []string) bool {
	switch names[0] {
	case "head":
		return len(names) == 1
	case "worktrees":
		return len(names) == 3 || len(names) == 4 && names[2] == "logs"
	case "modules", "refs", "logs":
		return true
	}
	return false
}

// directory is the part of the path above one of its names.
func (s *search) directory(name int) string {
	parts := strings.Split(strings.Trim(s.path, "/"), "/")
	return "/" + strings.Join(parts[:name], "/")
}

// Made tells whether a change brings a directory without any entry of the host.
func Made(c spec.Change) bool {
	return c.Type == spec.TypeDirectory && (c.Kind == spec.Created || c.Opaque || c.Kind == spec.Modified && c.Was != "")
}
