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

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Save writes the changes to a new file. After an error, or after the end of ctx, there is no
// file. Save shows and returns the changes that the file cannot hold.
func Save(ctx context.Context, talk *Conversation, c *sandbox.Changes, name string) (leftOut []sandbox.Unapplied, err error) {
	write, err := saveAs(c, name)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(name); err == nil {
		return nil, fmt.Errorf("save %s: the file exists already; choose another name", name)
	}
	f, err := draft.Create(filepath.Dir(name), ".sandbox-runtime-save-", 0o666)
	if err != nil {
		if refused := (*fs.PathError)(nil); errors.As(err, &refused) { // the user does not know the draft's name
			err = fmt.Errorf("directory %s: %w", filepath.Dir(name), refused.Err)
		}
		return nil, fmt.Errorf("save %s: %w", name, err)
	}
	leftOut, err = write(writerUntil(ctx, f))
	if err == nil {
		err = f.LinkDurably(name)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("save %s: %w", name, err)
	}
	talk.LeftOut(leftOut)
	talk.Say("saved to %s", name)
	return leftOut, nil
}

// saveAs returns the method that writes the form of the file's extension.
func saveAs(c *sandbox.Changes, name string) (func(io.Writer) ([]sandbox.Unapplied, error), error) {
	switch {
	case IsArchive(name):
		return c.Save, nil
	case strings.HasSuffix(name, ".patch"), strings.HasSuffix(name, ".diff"):
		return func(w io.Writer) ([]sandbox.Unapplied, error) {
			return c.SavePatch(w, sandbox.PatchOptions{})
		}, nil
	}
	return nil, fmt.Errorf("invalid file name %q: name a file that ends in .tar, .patch or .diff", name)
}

// IsArchive reports whether Save writes a tar archive to a file of this name.
func IsArchive(name string) bool { return strings.HasSuffix(name, ".tar") }
