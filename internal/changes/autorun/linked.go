package autorun

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
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
			for _, target := range l.targets(e) {
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

// targets are the places in the tree or above it to which the path of an entry, or a link
// below that path, leads.
func (l *links) targets(e Entry) (all []string) {
	// Of the patterns that begin with a wildcard, a directory .git is the usual one.
	pattern := strings.Replace(e.Pattern, "*.git/", ".git/", 1)
	first, _, _ := strings.Cut(pattern, "/")
	if !e.Held || e.When != "" || strings.Contains(pattern, "**") || path.IsAbs(pattern) || !strings.Contains(first, "*") && !l.hasEntry(first) {
		return nil
	}
	names := []string{pattern}
	if strings.Contains(pattern, "*") {
		names, _ = fs.Glob(os.DirFS(l.dir), pattern) // the pattern is well-formed
	}
	for _, name := range names {
		if target := l.target(name); target != "" {
			all = append(all, target)
		}
		all = append(all, l.targetsBelow(name)...)
	}
	return all
}

// hasEntry tells whether the directory has an entry of a name.
func (l *links) hasEntry(name string) bool {
	there, known := l.there[name]
	if !known {
		_, err := os.Lstat(path.Join(l.dir, name))
		there = err == nil
		l.there[name] = there
	}
	return there
}

// maxBelow bounds how many entries of a held directory are looked at, and maxDeep how
// deep they lie.
const (
	maxBelow = 4096
	maxDeep  = 2
)

// targetsBelow are the targets of links in a held directory, as of .git/hooks/pre-commit.
func (l *links) targetsBelow(name string) (all []string) {
	seen := 0
	_ = fs.WalkDir(os.DirFS(l.dir), name, func(at string, d fs.DirEntry, err error) error {
		if seen++; seen > maxBelow {
			return fs.SkipAll
		}
		switch {
		case err != nil:
			return nil //nolint:nilerr // a link that cannot be read leads nowhere that is known
		case d.Type()&fs.ModeSymlink != 0 && at != name:
			if target := l.target(at); target != l.tree && hostpaths.Within(target, l.tree) { // else it is about all of the tree
				all = append(all, target)
			}
		case d.IsDir() && strings.Count(at, "/")-strings.Count(name, "/") >= maxDeep:
			return fs.SkipDir
		}
		return nil
	})
	return all
}

// target is where a path leads in the tree or above it. It is empty if the path is no
// link, or leads elsewhere.
func (l *links) target(name string) string {
	target, err := resolve(path.Join(l.dir, name))
	if err != nil || target == path.Join(l.real, name) || !hostpaths.Within(target, l.tree) && !hostpaths.Within(l.tree, target) {
		return ""
	}
	return target
}

// resolve is where a path leads. The last link may lead to a file that is missing: the
// sandbox can make that file.
func resolve(name string) (string, error) {
	target, err := filepath.EvalSymlinks(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return target, err
	}
	link, err := os.Readlink(name)
	if err != nil {
		return "", err
	}
	if !path.IsAbs(link) {
		link = path.Join(path.Dir(name), link)
	}
	dir, err := filepath.EvalSymlinks(path.Dir(link))
	return path.Join(dir, path.Base(link)), err
}
