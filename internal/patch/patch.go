package patch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Tree is what a diff is of.
type Tree struct {
	*layer.Stack
	// Prefix is put before each path: where the tree lies below the directory
	// that the patch is meant for. No slash at either end.
	Prefix string
}

// Write writes what was changed in all of the trees. Without a change it writes
// nothing.
//
// The layers are listed twice: first for what stands at the top.
func Write(w io.Writer, trees ...Tree) error {
	p := &patch{out: bufio.NewWriter(w)}
	for _, t := range trees {
		if err := p.write(t); err != nil {
			return err
		}
	}
	return p.out.Flush()
}

func (p *patch) write(t Tree) error {
	p.stack, p.prefix = t.Stack, t.Prefix
	if err := p.preface(); err != nil {
		return err
	}
	for c, err := range t.Changes(layer.Options{Deleted: true}) {
		if err == nil {
			err = p.section(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// patch is one that is being written.
type patch struct {
	stack  *layer.Stack
	prefix string
	out    *bufio.Writer
	// begun says that the first line is there, which is of all trees.
	begun bool
	// inexpressible are replaced paths of which a patch can have only a part,
	// so that it has none.
	inexpressible map[string]bool
	// bare says that the section before has no hunk.
	bare bool
}

// section writes what there is to tell of one path.
func (p *patch) section(c spec.Change) error {
	var section bytes.Buffer
	afterBare := p.bare
	p.bare = false
	err := p.compare(&section, c)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone since it was listed
	} else if err != nil {
		return err
	}
	commented := gitRefuses(p.prefix+"/"+c.Path, c.Type == spec.TypeSymlink || c.Was == spec.TypeSymlink) || p.isInexpressible(c.Path)
	if afterBare && section.Len() > 0 {
		// Else git apply would take a line about binary files for a part of
		// the section before, apply.c:parse_chunk().
		fmt.Fprintln(p.out, "#")
	}
	mark := ""
	if commented {
		mark = "# "
	}
	for line := range bytes.Lines(section.Bytes()) {
		fmt.Fprintf(p.out, "%s%s", mark, line)
	}
	return nil // an error of out stays until it is flushed
}

// compare writes what makes the old into the new.
func (p *patch) compare(w *bytes.Buffer, c spec.Change) error {
	switch {
	case c.Kind == spec.Deleted:
		return p.removed(w, c.Path, c.Type)
	case c.Kind == spec.Modified && c.Type == spec.TypeFile && before(c) == spec.TypeFile:
		return p.edited(w, c)
	case c.Kind == spec.Modified && c.Type == before(c) && c.Type != spec.TypeSymlink:
		return nil // the preface has it
	case c.Kind == spec.Modified && c.Type == before(c):
		return p.relinked(w, c)
	case c.Kind == spec.Modified:
		if err := p.removed(w, c.Path, before(c)); err != nil {
			return err
		}
	}
	return p.added(w, c)
}

// before is the type of what a modified path was.
func before(c spec.Change) spec.FileType {
	if c.Was != "" {
		return c.Was
	}
	return c.Type
}

func (p *patch) removed(w *bytes.Buffer, path string, was spec.FileType) error {
	if was != spec.TypeFile && was != spec.TypeSymlink {
		return nil
	}
	old, err := p.stack.Below(path)
	if err != nil {
		return err
	}
	if old.Type == spec.TypeSymlink {
		p.whole(w, path, false, old, []byte(old.Link))
		return nil
	}
	content, err := read(p.stack.OpenBelow, path)
	if err != nil {
		return err
	}
	if !content.fits() {
		unfit(w, content.large, p.name("a", path), "/dev/null")
		return nil
	}
	p.whole(w, path, false, old, content.data)
	return nil
}

func (p *patch) added(w *bytes.Buffer, c spec.Change) error {
	switch c.Type {
	case spec.TypeSymlink:
		p.whole(w, c.Path, true, c, []byte(c.Link))
	case spec.TypeFile:
		content, err := read(p.stack.Open, c.Path)
		if err != nil {
			return err
		}
		if !content.fits() {
			unfit(w, content.large, "/dev/null", p.name("b", c.Path))
			return nil
		}
		p.whole(w, c.Path, true, c, content.data)
	}
	return nil
}

// relinked writes a link with another target: as one that is gone and one that
// is new, for which patch needs no index.
func (p *patch) relinked(w *bytes.Buffer, c spec.Change) error {
	old, err := p.stack.Below(c.Path)
	if err != nil || old.Link == c.Link {
		return err
	}
	p.whole(w, c.Path, false, old, []byte(old.Link))
	p.whole(w, c.Path, true, c, []byte(c.Link))
	return nil
}

// edited writes what makes a file into another.
func (p *patch) edited(w *bytes.Buffer, c spec.Change) error {
	base, err := p.stack.Below(c.Path)
	if err != nil {
		return err
	}
	old, err := read(p.stack.OpenBelow, c.Path)
	if err != nil {
		return err
	}
	now, err := read(p.stack.Open, c.Path)
	if err != nil {
		return err
	}
	a, b := p.name("a", c.Path), p.name("b", c.Path)
	same := bytes.Equal(old.data, now.data) && !old.large
	if !same && !canCompare(old, now) {
		unfit(w, !old.binary && !now.binary, a, b)
		return nil
	}
	wasMode, mode := gitMode(base), gitMode(c)
	if same && wasMode == mode {
		return nil
	}
	fmt.Fprintf(w, "diff --git %s %s\n", a, b)
	if wasMode != mode {
		fmt.Fprintf(w, "old mode %s\nnew mode %s\n", wasMode, mode)
	}
	if p.bare = same; same {
		return nil
	}
	fmt.Fprintf(w, "--- %s\n+++ %s\n", a, b)
	w.Write(hunks(old.data, now.data))
	return nil
}

// whole writes a file that is new, or that is gone.
func (p *patch) whole(w *bytes.Buffer, path string, isNew bool, c spec.Change, data []byte) {
	// GNU patch knows an empty file only by the index that git gives it.
	const empty, none = "e69de29", "0000000"
	a, b := p.name("a", path), p.name("b", path)
	fmt.Fprintf(w, "diff --git %s %s\n", a, b)
	mark := byte('-')
	if isNew {
		fmt.Fprintf(w, "new file mode %s\n", gitMode(c))
		a, mark = "/dev/null", '+'
	} else {
		fmt.Fprintf(w, "deleted file mode %s\n", gitMode(c))
		b = "/dev/null"
	}
	p.bare = len(data) == 0
	switch {
	case !p.bare:
		fmt.Fprintf(w, "--- %s\n+++ %s\n", a, b)
		hunk(w, mark, data)
	case isNew:
		fmt.Fprintf(w, "index %s..%s\n", none, empty)
	default:
		fmt.Fprintf(w, "index %s..%s\n", empty, none)
	}
}

// unfit names files that a patch cannot have.
func unfit(w *bytes.Buffer, large bool, a, b string) {
	if large {
		fmt.Fprintf(w, "# Too large for a patch: files %s and %s\n", a, b)
		return
	}
	fmt.Fprintf(w, "Binary files %s and %s differ\n", a, b)
}

// name is a path's in the patch, below a, b or nothing.
func (p *patch) name(side, path string) string {
	for _, above := range []string{p.prefix, side} {
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
