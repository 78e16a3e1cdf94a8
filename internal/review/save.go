package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Save writes a whole file or none. It lists and returns the paths that the file
// does not hold. The end of ctx ends it without a file.
func Save(ctx context.Context, talk *Conversation, c *sandbox.Changes, name string) (leftOut []sandbox.Unapplied, err error) {
	write, err := saveAs(c, name)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(name); err == nil {
		return nil, fmt.Errorf("%s exists already: choose another name", name)
	}
	f, err := newDraft(filepath.Dir(name))
	if err != nil {
		if refused := (*fs.PathError)(nil); errors.As(err, &refused) { // the draft's name says nothing
			err = fmt.Errorf("directory %s: %w", filepath.Dir(name), refused.Err)
		}
		return nil, fmt.Errorf("save %s: %w", name, err)
	}
	leftOut, err = write(writerUntil(ctx, f))
	if err == nil {
		err = f.publish(name)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("save %s: %w", name, err)
	}
	talk.LeftOut(leftOut)
	talk.Say("saved to %s", name)
	return leftOut, nil
}

// saveAs chooses the form by the file's name.
func saveAs(c *sandbox.Changes, name string) (func(io.Writer) ([]sandbox.Unapplied, error), error) {
	switch {
	case IsArchive(name):
		return c.Save, nil
	case strings.HasSuffix(name, ".patch"), strings.HasSuffix(name, ".diff"):
		return func(w io.Writer) ([]sandbox.Unapplied, error) {
			return c.SavePatch(w, sandbox.PatchOptions{})
		}, nil
	}
	return nil, fmt.Errorf("%q: name a file that ends in .tar or .patch", name)
}

// IsArchive reports whether a saved file of this name is a tar archive.
func IsArchive(name string) bool { return strings.HasSuffix(name, ".tar") }
