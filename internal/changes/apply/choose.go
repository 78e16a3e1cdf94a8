package apply

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// choose reads the changes and keeps those that are wanted.
func (p *Plan) choose() error {
	chosen, err := cleanPaths(p.o.Paths)
	if err != nil {
		return err
	}
	f := filter{chosen: chosen, taken: make([]bool, len(chosen)), hidden: make([]bool, len(chosen))}
	hold := holder{hold: p.o.Hold, tree: p.tree, reasons: map[string]string{}, tops: map[string]string{}}
	for c, err := range p.stack.Changes(layer.Options{Merged: p.seen.compareDirectory}) {
		if err != nil {
			if c.Path != "" && !f.concerns(c.Path) {
				continue
			}
			return fmt.Errorf("read the changes: %w", err)
		}
		if err := checkPath(c.Path); err != nil {
			return err
		}
		hold.examine(c)
		f.add(c)
	}
	p.changes = f.kept
	if err := p.hidden(&f); err != nil {
		return err
	}
	if err := p.holdBack(&hold); err != nil {
		return err
	}
	return p.leaveToHost()
}

// hidden handles the chosen paths without a change of their own. Such a path may be gone
// with a deleted directory: the plan then deletes the path alone.
func (p *Plan) hidden(f *filter) error {
	listed := len(p.changes)
	for i, path := range f.chosen {
		if f.taken[i] {
			continue
		}
		e, err := p.tree.stat(path)
		if !f.hidden[i] || err != nil {
			return fmt.Errorf("%q: nothing has changed there: choose a path that is listed, or one above it", filepath.Join(p.target.Name(), path))
		}
		p.changes = append(p.changes, spec.Change{Path: path, Kind: spec.Deleted, Type: e.fileType()})
	}
	if len(p.changes) > listed {
		slices.SortStableFunc(p.changes, func(a, b spec.Change) int { return comparePaths(a.Path, b.Path) })
	}
	return nil
}

// A filter keeps the changes at chosen paths and below them, with the
// directories above that have to come along.
type filter struct {
	chosen []string
	taken  []bool
	// hidden tells which of chosen are below a directory that is gone as a whole.
	hidden []bool
	above  []spec.Change
	kept   []spec.Change
}

func (f *filter) add(c spec.Change) {
	if len(f.chosen) == 0 {
		f.kept = append(f.kept, c)
		return
	}
	take, above := false, false
	for i, path := range f.chosen {
		if isBelow(c.Path, path) {
			f.taken[i], take = true, true
		} else if isBelow(path, c.Path) {
			above = true
			f.hidden[i] = f.hidden[i] || c.Kind == spec.Deleted || c.Opaque
		}
	}
	isNew := c.Kind == spec.Created || c.Was != "" && c.Was != spec.TypeDirectory
	if above && !take && isNew && c.Kind != spec.Deleted && c.Type == spec.TypeDirectory {
		f.above = append(f.above, c)
	}
	if take {
		f.kept = append(f.kept, f.parentsOf(c.Path)...)
		f.kept = append(f.kept, c)
	}
}

// concerns tells whether something that is chosen is at, above or below a path.
func (f *filter) concerns(path string) bool {
	return len(f.chosen) == 0 || slices.ContainsFunc(f.chosen, func(chosen string) bool {
		return isBelow(path, chosen) || isBelow(chosen, path)
	})
}

// parentsOf takes the directories above a path out of those that wait.
func (f *filter) parentsOf(path string) []spec.Change {
	var parents []spec.Change
	for _, c := range f.above {
		if isBelow(path, c.Path) {
			parents = append(parents, c)
		}
	}
	f.above = slices.DeleteFunc(f.above, func(c spec.Change) bool { return isBelow(path, c.Path) })
	return parents
}

// cleanPaths checks a user's paths, and leaves out those below another.
func cleanPaths(paths []string) ([]string, error) {
	var cleaned []string
	for _, path := range paths {
		path = strings.TrimPrefix(strings.TrimSuffix(path, "/"), "./")
		if path == "." || path == "" {
			return nil, nil
		}
		if err := checkPath(path); err != nil {
			return nil, err
		}
		cleaned = append(cleaned, path)
	}
	slices.Sort(cleaned)
	var all []string
	for _, path := range slices.Compact(cleaned) {
		if !slices.ContainsFunc(all, func(above string) bool { return isBelow(path, above) }) {
			all = append(all, path)
		}
	}
	return all, nil
}

// checkPath refuses a path that is not one in a tree. The paths of a layer's reader always
// are; a user's may not be.
func checkPath(path string) error {
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, 0) {
			return fmt.Errorf("%q is not a path in the tree: it is relative to the tree's root, and has no empty part and no dots as one", path)
		}
	}
	return nil
}
