package patch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Tree is one overlay.
type Tree struct {
	*layer.Stack
	// Prefix is put before each path: where the tree lies below the directory
	// that the patch is meant for. No slash at either end.
	Prefix string
	// LeftOut is called for each path that the patch does not hold, or not as a
	// whole. The path has no prefix. One path may come several times. Nil: not
	// called.
	LeftOut func(path, reason string)
}

// Options of a patch.
type Options struct {
	// Short writes one line in place of each binary file, and leaves the file
	// out. A short patch has no bound; any other is smaller than 1023 MiB.
	Short bool
}

// maxPatch is the size of the smallest patch that git apply refuses,
// apply.c:read_patch_file(). A sandbox could fill the host's disk without a
// bound: a patch holds each hard link as a file of its own.
const maxPatch = 1023 << 20

// Write writes the changes of all the trees. Without a change it writes nothing.
//
// It lists the layers twice: first for the lines at the top.
func Write(w io.Writer, o Options, trees ...Tree) error {
	if !o.Short {
		w = &boundedWriter{to: w, left: maxPatch - 1}
	}
	p := &patch{out: bufio.NewWriter(w), short: o.Short}
	for _, t := range trees {
		if err := p.write(t); err != nil {
			return err
		}
	}
	return p.out.Flush()
}

// A boundedWriter is a writer that takes a number of bytes.
type boundedWriter struct {
	to   io.Writer
	left int
}

func (b *boundedWriter) Write(data []byte) (int, error) {
	if len(data) > b.left {
		return 0, fmt.Errorf("write a patch: it is larger than %d MiB, which git apply refuses; save a .tar", maxPatch>>20)
	}
	b.left -= len(data)
	return b.to.Write(data)
}

func (p *patch) write(t Tree) error {
	p.tree = t
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
	tree  Tree
	out   *bufio.Writer
	short bool
	// begun says that the first line is written. All trees share it.
	begun bool
	// inexpressible are replaced paths of which a patch can have only a part,
	// so that it has none.
	inexpressible map[string]bool
	// bare says that the section before has no hunk.
	bare bool
}

// section writes the part of the patch about one path.
func (p *patch) section(c spec.Change) error {
	afterBare := p.bare
	p.bare = false
	reason := p.refusal(c)
	s := &section{tree: p.tree, short: p.short || reason != ""}
	err := s.compare(c)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // gone since it was listed
	} else if err != nil {
		return err
	}
	if p.bare = s.bare; s.text.Len() == 0 {
		return nil
	}
	if afterBare {
		// Else git apply would take a line about binary files for a part of
		// the section before, apply.c:parse_chunk().
		fmt.Fprintln(p.out, "#")
	}
	mark := ""
	if reason != "" {
		mark = "# "
	} else {
		reason = s.lacks
	}
	if reason != "" {
		p.leftOut(c.Path, reason)
	}
	for line := range bytes.Lines(s.text.Bytes()) {
		if _, err := fmt.Fprintf(p.out, "%s%s", mark, line); err != nil {
			return err
		}
	}
	return nil
}

// refusal is the reason to write the section of a path as a comment; empty: no comment.
func (p *patch) refusal(c spec.Change) string {
	switch {
	case gitRefuses(p.tree.Prefix+"/"+c.Path, c.Type == spec.TypeSymlink || c.Was == spec.TypeSymlink):
		return "git apply refuses this name"
	case p.isInexpressible(c.Path):
		return "a patch cannot hold all of this replacement"
	}
	return ""
}

// leftOut tells the caller about a path that the patch does not hold.
func (p *patch) leftOut(path, reason string) {
	if p.tree.LeftOut != nil {
		p.tree.LeftOut(path, reason)
	}
}
