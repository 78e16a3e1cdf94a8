package sandbox

import (
	"context"
	"fmt"
	"io"
	"path"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/patch"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// PatchOptions are options of [Changes.SavePatch].
type PatchOptions struct {
	// Short writes one line in place of each binary file, and leaves the file
	// out. A short patch is for readers.
	Short bool
}

// SavePatch writes the changes as a unified diff in the form of git, with binary
// files as git binary patches. Paths begin at the overlaid directory, or at /
// where several are overlaid. git apply takes the patch, in a SHA-256 repository
// only if no file is binary. patch -p1 takes a patch of text files.
//
// It returns each path that the patch does not hold, or holds only in part, with the
// reason: for example files of more than 16 MiB, special files, empty directories,
// paths in .git, new owners of old files, modes, extended attributes and hard links.
// Times and the owners of new files are in no patch, and are not in the list. One path
// may come several times. The list takes at most 64 MiB; the last entry of a longer
// list has no path, and its reason counts the other paths. An archive of Save holds
// all of these except sockets and devices.
//
// A patch of 1023 MiB is an error, since git apply refuses such a patch. After an
// error do not use the patch: it may not be whole, or its content may be lost.
//
// Errors: ErrDamaged.
func (c *Changes) SavePatch(w io.Writer, o PatchOptions) (leftOut []Unapplied, err error) {
	var list omissions
	err = c.writePatch(w, o, list.add)
	return list.entries(), err
}

// Diff writes the changes as SavePatch with Short does: one line for each binary file.
// git apply and patch take the other files.
//
// Errors: ErrDamaged.
func (c *Changes) Diff(w io.Writer) error {
	return c.writePatch(w, PatchOptions{Short: true}, nil)
}

// writePatch calls leftOut, if not nil, for each path that the patch does not hold.
func (c *Changes) writePatch(w io.Writer, o PatchOptions, leftOut func(name, reason string)) error {
	return c.checked(func() error {
		return c.explain(patch.Write(w, patch.Options{Short: o.Short}, c.patchTrees(leftOut)...))
	})
}

// checked reads the content of the layers with a function. It is an error if the host's
// disk has lost some of the content, before or meanwhile.
func (c *Changes) checked(read func() error) error {
	if err := c.verify(context.Background()); err != nil {
		return err
	}
	if err := read(); err != nil {
		return err
	}
	return c.verify(context.Background())
}

func (c *Changes) patchTrees(leftOut func(name, reason string)) (trees []patch.Tree) {
	for _, t := range c.trees {
		tree := patch.Tree{Stack: &t.Stack, Prefix: c.prefix(t)}
		if leftOut != nil {
			tree.LeftOut = func(name, reason string) { leftOut(path.Join(t.Path, name), reason) }
		}
		trees = append(trees, tree)
	}
	return trees
}

// Save writes the changes as a tar archive in the form of an OCI layer, with
// whiteouts for deleted paths. Paths are as in SavePatch. It returns the paths that an
// archive cannot hold, in a list like that of SavePatch. After an error do not use the
// archive: it may not be whole, or its content may be lost.
//
// Errors: ErrDamaged.
func (c *Changes) Save(w io.Writer) (leftOut []Unapplied, err error) {
	var list omissions
	err = c.checked(func() error { return c.writeArchive(w, list.add) })
	return list.entries(), err
}

func (c *Changes) writeArchive(w io.Writer, leftOut func(name, reason string)) error {
	for i, t := range c.trees {
		err := layer.WriteTar(w, &t.Stack, layer.TarOptions{
			Prefix: c.prefix(t),
			More:   i < len(c.trees)-1,
			LeftOut: func(name string, typ spec.FileType) {
				leftOut(path.Join(t.Path, name), "an archive holds no "+string(typ))
			},
		})
		if err != nil {
			return c.explain(err)
		}
	}
	return nil
}

const (
	// maxOmissions is the number of bytes that a list of omissions takes.
	maxOmissions = 64 << 20
	// omissionSize is the size of an entry without its texts, with room for the growth
	// of the list.
	omissionSize = 64
)

// omissions is a list of paths that a file does not hold.
type omissions struct {
	named []Unapplied
	bytes int
	more  int
}

func (o *omissions) add(name, reason string) {
	o.bytes += len(name) + len(reason) + omissionSize
	if o.bytes > maxOmissions {
		o.more++
		return
	}
	o.named = append(o.named, Unapplied{Path: name, Reason: reason})
}

// entries is the list, with an entry that counts the paths that it has no room for.
func (o *omissions) entries() []Unapplied {
	if o.more == 0 {
		return o.named
	}
	return append(o.named, Unapplied{Reason: fmt.Sprintf("%d more; the list has no room for them", o.more)})
}
