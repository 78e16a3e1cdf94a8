package patch

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A section is the part of a patch about one path.
type section struct {
	tree Tree
	text bytes.Buffer
	// short has one line in place of each binary file.
	short bool
	// lacks is the reason why a file is not in the section; empty: no file is missing.
	lacks string
	// bare says that the section ends without a hunk.
	bare bool
}

// compare writes the difference between the old path and the new one.
func (s *section) compare(c spec.Change) error {
	switch {
	case c.Kind == spec.Deleted:
		return s.removed(c.Path, c.Type)
	case c.Kind == spec.Modified && c.Type == spec.TypeFile && before(c) == spec.TypeFile:
		return s.edited(c)
	case c.Kind == spec.Modified && c.Type == before(c) && c.Type != spec.TypeSymlink:
		return nil // the preface has it
	case c.Kind == spec.Modified && c.Type == before(c):
		return s.relinked(c)
	case c.Kind == spec.Modified:
		if err := s.removed(c.Path, before(c)); err != nil {
			return err
		}
	}
	return s.writeAdded(c)
}

// before is the old type of a modified path.
func before(c spec.Change) spec.FileType {
	if c.Was != "" {
		return c.Was
	}
	return c.Type
}

func (s *section) removed(path string, was spec.FileType) error {
	if was != spec.TypeFile && was != spec.TypeSymlink {
		return nil
	}
	old, err := s.tree.Below(path)
	if err != nil {
		return err
	}
	return s.writeWhole(old, false)
}

func (s *section) writeAdded(c spec.Change) error {
	if c.Type != spec.TypeFile && c.Type != spec.TypeSymlink {
		return nil
	}
	return s.writeWhole(c, true)
}

// relinked writes a link with another target: as one that is gone and one that
// is new, for which patch needs no index.
func (s *section) relinked(c spec.Change) error {
	old, err := s.tree.Below(c.Path)
	if err != nil || old.Link == c.Link {
		return err
	}
	return cmp.Or(s.writeWhole(old, false), s.writeWhole(c, true))
}

// edited writes the difference between two files.
func (s *section) edited(c spec.Change) error {
	base, err := s.tree.Below(c.Path)
	if err != nil {
		return err
	}
	old, err := read(s.tree.OpenBelow, c.Path)
	if err != nil {
		return err
	}
	now, err := read(s.tree.Open, c.Path)
	if err != nil {
		return err
	}
	a, b := s.tree.name("a", c.Path), s.tree.name("b", c.Path)
	same := bytes.Equal(old.data, now.data) && !old.large
	if !same && (!old.fitsPatch(s.short) || !now.fitsPatch(s.short)) {
		s.noteUnfit(old.large || now.large, "", a, b)
		return nil
	}
	wasMode, mode := gitMode(base), gitMode(c)
	if same && wasMode == mode {
		return nil
	}
	fmt.Fprintf(&s.text, "diff --git %s %s\n", a, b)
	if wasMode != mode {
		fmt.Fprintf(&s.text, "old mode %s\nnew mode %s\n", wasMode, mode)
	}
	s.bare = same
	switch {
	case same:
	case old.binary || now.binary:
		fmt.Fprintf(&s.text, "index %s..%s\n", blobID(old.data), blobID(now.data))
		literals(&s.text, old.data, now.data)
	default:
		fmt.Fprintf(&s.text, "--- %s\n+++ %s\n", a, b)
		hunks(&s.text, old.data, now.data)
	}
	return nil
}

// writeWhole writes a file or a link that is new, or that is gone.
func (s *section) writeWhole(c spec.Change, isNew bool) error {
	content, err := s.contentOf(c, isNew)
	if err != nil {
		return err
	}
	a, b := s.tree.name("a", c.Path), s.tree.name("b", c.Path)
	from, to, old, now := "/dev/null", b, []byte(nil), content.data
	what, action := "new", ""
	if !isNew {
		from, to, old, now = a, "/dev/null", content.data, nil
		what, action = "deleted", "the removal of "
	}
	if !content.fitsPatch(s.short) {
		s.noteUnfit(content.large, action, from, to)
		return nil
	}
	fmt.Fprintf(&s.text, "diff --git %s %s\n%s file mode %s\n", a, b, what, gitMode(c))
	s.bare = len(content.data) == 0
	if s.bare || content.binary { // GNU patch knows an empty file only by its id
		ids := [2]string{noBlob, blobID(content.data)}
		if !isNew {
			slices.Reverse(ids[:])
		}
		fmt.Fprintf(&s.text, "index %s..%s\n", ids[0], ids[1])
	}
	switch {
	case s.bare:
	case content.binary:
		literals(&s.text, old, now)
	default:
		fmt.Fprintf(&s.text, "--- %s\n+++ %s\n", from, to)
		replace(&s.text, old, now)
	}
	return nil
}

// contentOf is the content of a file, or the target of a link.
func (s *section) contentOf(c spec.Change, isNew bool) (text, error) {
	switch {
	case c.Type == spec.TypeSymlink:
		return text{data: []byte(c.Link)}, nil
	case isNew:
		return read(s.tree.Open, c.Path)
	}
	return read(s.tree.OpenBelow, c.Path)
}

// noteUnfit names files that a patch cannot hold.
func (s *section) noteUnfit(large bool, action, a, b string) {
	if large {
		fmt.Fprintf(&s.text, "# Too large for a patch: files %s and %s\n", a, b)
		s.lacks = fmt.Sprintf("%sa file of more than %d MiB", action, maxSize>>20)
		return
	}
	fmt.Fprintf(&s.text, "Binary files %s and %s differ\n", a, b)
	s.lacks = action + "a binary file, which a short diff only names"
}

// name is a path's in the patch, below a, b or nothing.
func (t Tree) name(side, path string) string {
	for _, above := range []string{t.Prefix, side} {
		if above != "" {
			path = above + "/" + path
		}
	}
	return quote(path)
}

// gitMode is the mode that git has for a file: of permissions it knows one bit.
func gitMode(c spec.Change) string {
	switch {
	case c.Type == spec.TypeSymlink:
		return "120000"
	case c.Mode&0o100 != 0:
		return "100755"
	default:
		return "100644"
	}
}
