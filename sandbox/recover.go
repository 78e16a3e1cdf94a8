package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/apply"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// recoverTrees ends the killed applies to overlaid directories: each is finished, or taken
// back if the host has changed the tree meanwhile. It returns a sentence for each
// directory with such an apply. The sandboxes that the applies were of are told.
func recoverTrees(ctx context.Context, client *protocol.Client, dirs []string) (notes []string, err error) {
	var errs []error
	for _, name := range dirs {
		dir, err := layer.OpenTree(name)
		if err != nil {
			continue // the caller opens the directory again, and reports the error
		}
		done, err := recoverTree(name, dir, func(source string, stamps map[string]layer.Stamp) error {
			return tellSource(ctx, client, source, name, stamps)
		})
		dir.Close()
		notes = append(notes, notesOf(name, done)...)
		errs = append(errs, err)
	}
	return notes, errors.Join(errs...)
}

// tellSource tells the sandbox that an apply was of. A sandbox that is gone, or has no
// such overlay any more, needs no word.
func tellSource(ctx context.Context, client *protocol.Client, source, tree string, stamps map[string]layer.Stamp) error {
	id, _, _ := strings.Cut(source, layer.SourceSeparator)
	err := client.Applied(ctx, id, tree, stamps)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrNotRunning) || cannotNote(err) {
		return nil
	}
	return errorAbout(id, err)
}

// cannotNote tells whether a sandbox refuses to note an apply. It would refuse the same again.
func cannotNote(err error) bool {
	_, ok := errors.AsType[*ConfigError](err)
	return ok
}

// forgotten says what a refusal means for the user.
const forgotten = "the sandbox cannot note this, so the next apply says that the host has changed these files"

// recoverTree leaves applies of another user, and applies that are still going on.
func recoverTree(name string, dir *os.File, tell func(source string, stamps map[string]layer.Stamp) error) (apply.Recovery, error) {
	done, err := apply.Recover(dir, false, tell)
	switch {
	case errors.Is(err, apply.ErrBusy), errors.Is(err, apply.ErrForeign), errors.Is(err, fs.ErrPermission):
		return done, nil
	case err != nil:
		return done, fmt.Errorf("end a killed apply to %s: %w", name, err)
	}
	return done, nil
}

func notesOf(dir string, r apply.Recovery) (notes []string) {
	if r.Finished {
		notes = append(notes, fmt.Sprintf("an earlier apply to %s was killed; it is finished now", dir))
	}
	if r.TakenBack {
		note := fmt.Sprintf("an earlier apply to %s was killed, and the host has changed since; it is taken back now", dir)
		if len(r.Stays) > 0 {
			note += ", except these paths, which have changed since: " + listPaths(dir, r.Stays)
		}
		if len(r.Kept) > 0 {
			note += "; files of the host that could not go back are kept as " + listPaths(dir, r.Kept)
		}
		notes = append(notes, note)
	}
	return notes
}

// listPaths lists paths for a sentence.
func listPaths(dir string, paths []string) string {
	var all []string
	for _, p := range paths[:min(len(paths), maxNamed)] {
		all = append(all, streams.Visible(path.Join(dir, p)))
	}
	list := strings.Join(all, ", ")
	if more := len(paths) - maxNamed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// recover ends the killed applies to the trees, and tells the sandbox about its own
// ones.
func (c *Changes) recover(ctx context.Context) error {
	for _, t := range c.trees {
		if t.Moved || t.Image {
			continue
		}
		done, err := recoverTree(t.Path, t.Top, c.tellOwn(ctx, t))
		if err != nil {
			return err
		}
		c.notes = append(c.notes, notesOf(t.Path, done)...)
	}
	return nil
}

// tellOwn tells the sandbox of its own applies to a tree.
func (c *Changes) tellOwn(ctx context.Context, t *layer.Tree) func(string, map[string]layer.Stamp) error {
	return func(source string, stamps map[string]layer.Stamp) error {
		if source != t.Source(c.id) {
			return apply.ErrUntold
		}
		err := c.source.Applied(ctx, t.Path, stamps)
		if cannotNote(err) {
			c.notes = append(c.notes, fmt.Sprintf("an earlier apply to %s was done, but %s: %v", t.Path, forgotten, err))
			err = nil
		}
		if err != nil {
			return fmt.Errorf("tell the sandbox of an earlier apply: %w", err)
		}
		t.Remember(stamps)
		return nil
	}
}
