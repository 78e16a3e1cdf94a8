package autorun

import (
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Linked returns entries for files of a tree under other names: the host has a link
// from a held path to each of them, as ~/.bashrc to dotfiles/bashrc. It looks for held
// paths in the given directories. tree is an absolute path.
func Linked(tree string, dirs ...string) []Entry {
	resolved, err := filepath.EvalSymlinks(tree)
	if err != nil {
		return nil // nothing leads to a missing tree
	}
	var found []Entry
	for _, dir := range dirs {
		l := links{tree: resolved, dir: dir, there: map[string]bool{}}
		if l.real, err = filepath.EvalSymlinks(dir); err != nil || !path.IsAbs(dir) {
			continue
		}
		for _, e := range Entries() {
			if target := l.target(e); target != "" {
				found = append(found, Entry{Pattern: target, Reason: e.Reason, Held: true})
			}
		}
	}
	return found
}

// links are those of one directory that lead into a tree.
type links struct {
	tree, dir, real string
	there           map[string]bool // first names of entries that exist
}

// target is where the path of an entry leads in the tree or above it. It is empty if
// the path is no link, or leads elsewhere.
func (l *links) target(e Entry) string {
	if !e.Held || e.When != "" || strings.Contains(e.Pattern, "*") || path.IsAbs(e.Pattern) {
		return ""
	}
	first, _, _ := strings.Cut(e.Pattern, "/")
	there, known := l.there[first]
	if !known {
		_, err := os.Lstat(path.Join(l.dir, first))
		there = err == nil
		l.there[first] = there
	}
	if !there {
		return ""
	}
	target, err := filepath.EvalSymlinks(path.Join(l.dir, e.Pattern))
	if err != nil || target == path.Join(l.real, e.Pattern) || !beneath(target, l.tree) && !beneath(l.tree, target) {
		return ""
	}
	return target
}

func beneath(name, dir string) bool {
	return name == dir || dir == "/" || strings.HasPrefix(name, dir+"/")
}
