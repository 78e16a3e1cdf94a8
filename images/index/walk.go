package index

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// walk looks up a directory below the root. Symbolic links are followed, and ".." stops at the
// root. With create, missing directories are made; otherwise one is errMissing.
func (t *tree) walk(path string, create bool) (*inode, error) {
	at, links := t.root, 0
	var missing []string
	for rest := path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if err := t.step(1); err != nil {
			return nil, err
		}
		switch {
		case name == "" || name == ".":
			continue
		case name == ".." && len(missing) > 0:
			missing = missing[:len(missing)-1]
			continue
		case name == "..":
			at = at.dir.parent
			continue
		case len(missing) > 0:
			missing = append(missing, name)
			continue
		}
		e, ok := at.dir.entries[name]
		switch {
		case !ok && !create:
			return nil, errMissing
		case !ok:
			missing = append(missing, name)
		case e.dir != nil:
			at = e.inode
		case e.kind() != unix.S_IFLNK:
			return nil, errNotDirectory
		default:
			if links++; links > maxLinks {
				return nil, errors.New("the parent has too many symbolic links")
			}
			if err := t.step(len(e.target)); err != nil {
				return nil, err
			}
			if strings.HasPrefix(e.target, "/") {
				at = t.root
			}
			rest = e.target + "/" + rest
		}
	}
	return t.makeAll(at, missing)
}

// step bounds the lookups, and the bytes of followed links, of all entries together.
func (t *tree) step(n int) error {
	most := int64(t.limits.Entries) * stepsPerEntry
	if t.steps += int64(n); t.steps > most {
		return &LimitError{Limit: "lookups in paths", Max: most}
	}
	return nil
}

func (t *tree) makeAll(at *inode, names []string) (*inode, error) {
	for _, name := range names {
		d := newDirectory(0o755)
		if err := t.put(at, name, d); err != nil {
			return nil, err
		}
		at = d
	}
	return at, nil
}
