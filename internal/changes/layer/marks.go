package layer

import (
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/autorun"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// mark prepares the marks of the tree's changes.
func (t *Tree) mark() {
	if t.Image { // the host runs nothing of it
		return
	}
	if place, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", t.Top.Fd())); err == nil && place != t.Path {
		t.real = place
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // then no link of the home directory counts
	}
	t.marker = autorun.New(t.isRepository, autorun.Linked(t.Path, home, t.Path)...)
}

// isRepository tells whether the host or the sandbox has a file HEAD in a directory.
func (t *Tree) isRepository(dir string) bool {
	for _, top := range []string{t.Path, t.real} {
		if top == "" || !hostpaths.Within(dir, top) {
			continue
		}
		name := strings.Trim(path.Join(strings.TrimPrefix(dir, top), "HEAD"), "/")
		if head, err := t.Stack.Below(name); err == nil && head.Type != spec.TypeDirectory {
			return true
		}
		head, err := t.Stack.Type(name)
		return err == nil && head != spec.TypeDirectory
	}
	head, err := os.Lstat(path.Join(dir, "HEAD")) // the tree may lie in a repository
	return err == nil && !head.IsDir()
}

// pathMark is the mark of a change by its place on the host. The change has a relative
// path.
func (t *Tree) pathMark(c spec.Change) (autorun.Mark, bool) {
	if t.marker == nil {
		return autorun.Mark{}, false
	}
	mark, ok := t.marker.Path(path.Join(t.Path, c.Path), c)
	if t.real != "" && !mark.Held {
		if other, has := t.marker.Path(path.Join(t.real, c.Path), c); has && (other.Held || !ok) {
			return other, true
		}
	}
	return mark, ok
}

// Hold is the reason to leave a change out.
func (t *Tree) Hold(c spec.Change) string {
	mark, _ := t.pathMark(c)
	if !mark.Held {
		return ""
	}
	return mark.Reason
}

// A Marking adds marks to a list of changes, in which parents come first.
type Marking struct {
	tree *Tree
	// top is the last directory that is held with all below, reason is its reason.
	top, reason string
}

// Marks begins a list of the changes at some paths. A directory above them may be held
// with all below, and is not in the list: marks looks at such directories first.
func (t *Tree) Marks(paths []string) *Marking {
	m := &Marking{tree: t}
	for _, name := range paths {
		for at, char := range []byte(name) {
			if char == '/' && m.reason == "" {
				m.begin(name[:at])
			}
		}
	}
	return m
}

// begin looks at a directory above the paths that are listed.
func (m *Marking) begin(dir string) {
	if _, ok := m.tree.pathMark(spec.Change{Path: dir, Kind: spec.Created, Type: spec.TypeDirectory}); !ok {
		return // not even a new directory of this name is held
	}
	for c, err := range m.tree.Stack.Changes(Options{Names: true, Paths: []string{dir}}) {
		if err == nil && c.Path == dir {
			m.Add(&c)
		}
		return
	}
}

// Add fills in the marks of a change.
func (m *Marking) Add(c *spec.Change) {
	mark, _ := m.tree.pathMark(*c)
	switch {
	case m.top != "" && hostpaths.Within(c.Path, m.top):
		if c.Kind != spec.Deleted {
			mark = autorun.Mark{Reason: m.reason, Held: true}
		}
	case mark.Held && autorun.Made(*c):
		m.top, m.reason = c.Path, mark.Reason
	}
	reasons := m.tree.rights(c)
	if mark.Reason != "" {
		reasons = append([]string{mark.Reason}, reasons...)
	}
	c.Warning, c.Held = strings.Join(reasons, "; "), mark.Held
}

// rights are reasons to look at a change's mode and owner, if these are known.
func (t *Tree) rights(c *spec.Change) []string {
	if c.ModTime.IsZero() || c.Kind == spec.Deleted {
		return nil
	}
	var before *spec.Change
	if c.Kind == spec.Modified && c.Was == "" {
		if below, err := t.Stack.Below(c.Path); err == nil && below.Type == c.Type {
			before = &below
		}
	}
	uid, gid, _ := t.insideOfBase(t.Owner.UID, t.Owner.GID)
	return autorun.Rights(*c, before, uid, gid)
}
