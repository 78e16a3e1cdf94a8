package sandbox

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// verify returns an error that is ErrDamaged if the content of the sandbox's files
// cannot be trusted. Without an error all content that was read before is as the
// sandbox wrote it, also if the sandbox has written on meanwhile.
func (c *Changes) verify(ctx context.Context) error { return c.verified(ctx, true) }

// verifyNames is verify for names alone: it reports a recorded error, and does not sync.
func (c *Changes) verifyNames(ctx context.Context) error { return c.verified(ctx, false) }

func (c *Changes) verified(ctx context.Context, sync bool) error {
	if len(c.trees) == 0 {
		return nil
	}
	err := c.source.Verify(ctx, sync)
	if err == nil {
		err = c.unreplaced(ctx)
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return &Error{c.id, errRemoved}
	case errors.Is(err, ErrNotRunning):
		return c.explainGone(err)
	}
	return errorAbout(c.id, err)
}

// unreplaced returns ErrNotFound if another sandbox has taken the id of one with its files
// in memory. Files on disk are cut off with their image.
func (c *Changes) unreplaced(ctx context.Context) error {
	if c.created.IsZero() {
		return nil
	}
	info, err := c.source.Describe(ctx)
	if err == nil && !info.Created.Equal(c.created) {
		err = ErrNotFound
	}
	return err
}

// A verifiedFile is content that was verified once it was read to its end.
type verifiedFile struct {
	io.ReadCloser
	changes *Changes
}

func (f *verifiedFile) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		if damaged := f.changes.verify(context.Background()); damaged != nil {
			err = damaged
		}
	}
	return n, err
}

// untie returns a function for an apply of a tree that is read from now on. The function is called after the changes
// were read. Then it is an error if a directory of the host was renamed meanwhile. With directories it has directories of
// the host that were renamed inside be free to go.
//
// A program that reads the layers by a list of marks does not see later renames. So it can also
// take a file for another one. A program that reads the marks themselves can only overlook a directory.
func (c *Changes) untie(t *layer.Tree) func(ctx context.Context, directories bool) error {
	listed := slices.ContainsFunc(t.Stack.Layers, func(l layer.Layer) bool { return l.Marks != nil })
	since := c.opened
	if !listed {
		since = time.Now()
	}
	return func(ctx context.Context, directories bool) error {
		if !directories && !listed {
			return nil
		}
		return errorAbout(c.id, c.source.Untie(ctx, protocol.Untie{Since: since, Directories: directories}))
	}
}
