package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Changes are the writes of a sandbox to its overlays. They are live: each call sees the
// writes until then. They are read with this program's own rights, from mounts that no
// other process has. Close releases the mounts.
//
// Paths are absolute: a file has the same path in the sandbox and on the host.
type Changes struct {
	id     string
	source layerHolder
	trees  []*layer.Tree
	notes  []string
	// created tells a sandbox with its files in memory from a later one with its id. Zero:
	// the files are on disk.
	created time.Time
	// opened is a time before the layers were opened.
	opened time.Time
}

// Changes opens the sandbox's writes to its overlays. The caller must close them before
// the sandbox.
//
// A stopped sandbox with storage on disk has its changes, too. With storage in memory they
// are lost, and the error is ErrNotRunning.
//
// Errors: ErrNotRunning and ErrNotFound; ErrUnavailable if the provider has no overlays. A
// sandbox without overlays has no changes.
func (s *Sandbox) Changes(ctx context.Context) (*Changes, error) {
	source, err := instanceAbility[layerHolder](s, "changes")
	if err != nil {
		return nil, err
	}
	c := &Changes{id: s.info.ID, source: source, opened: time.Now()}
	if s.info.Config.Storage != StorageDisk {
		info, err := source.Describe(ctx)
		if err != nil {
			return nil, errorAbout(s.info.ID, err)
		}
		c.created = info.Created
	}
	trees, err := source.Layers(ctx)
	if err != nil {
		return nil, errorAbout(s.info.ID, err)
	}
	for _, t := range trees {
		c.trees = append(c.trees, &layer.Tree{Overlay: t, RunsAs: *s.info.Config.User})
	}
	for _, t := range c.trees {
		if err := t.Open(); err != nil {
			return nil, errorAbout(s.info.ID, errors.Join(err, c.Close()))
		}
	}
	if err := c.recover(ctx); err != nil {
		return nil, errorAbout(s.info.ID, errors.Join(err, c.Close()))
	}
	return c, nil
}

// Close lets go of the layers.
func (c *Changes) Close() error {
	var errs []error
	for _, t := range c.trees {
		if t.Top != nil {
			errs = append(errs, t.Top.Close())
		}
		errs = append(errs, t.Close())
	}
	c.trees = nil
	return errors.Join(errs...)
}

// Trees are the directories that are overlaid.
func (c *Changes) Trees() []string {
	var paths []string
	for _, t := range c.trees {
		paths = append(paths, t.Path)
	}
	return paths
}

// ListOptions choose the changes that [Changes.List] lists.
type ListOptions struct {
	// Names leaves out all but path, kind and types, and does not find
	// directories of which nothing but mode, owner or attributes changed. It
	// is several times faster.
	Names bool
	// Paths are those that are listed, with all below them. None: all.
	Paths []string
	// Deleted lists each path that is gone with a directory; else the
	// directory stands for them.
	Deleted bool
}

// List lists the changes, each directory before its content. The list is made while it is
// read. Its cost grows with the changes, not with the trees.
//
// Warning and Held mark a change that runs without a question or has unusual rights. Names
// leaves rights out. Apply can hold more back: see [Applied].
//
// An error comes with the path that it is about, and the list goes on after it if the
// caller does. The last error may be ErrDamaged. It has no path: it is about the content
// of all files. List only looks for a recorded error, and does not sync.
func (c *Changes) List(o ListOptions) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		chosen, err := c.choose(o.Paths)
		if err != nil {
			yield(Change{}, err)
			return
		}
		for _, t := range c.trees {
			paths, ok := chosen.pathsOf(t)
			if !ok {
				continue
			}
			marks := t.Marks(paths)
			for change, err := range t.Stack.Changes(layer.Options{Names: o.Names, Paths: paths, Deleted: o.Deleted}) {
				if err == nil {
					marks.Add(&change)
				}
				if !yield(t.Absolute(change), c.explain(err)) {
					return
				}
			}
		}
		if err := c.verifyNames(context.Background()); err != nil {
			yield(Change{}, err)
		}
	}
}

// Open opens a changed regular file's content, as the sandbox sees it.
//
// Errors: ErrDamaged, at the latest of the Read that reaches the file's end.
func (c *Changes) Open(name string) (io.ReadCloser, error) {
	t, rel, err := c.find(name)
	if err == nil && rel == "" {
		err = fmt.Errorf("%s is a directory", name)
	}
	if err != nil {
		return nil, err
	}
	if err := c.verify(context.Background()); err != nil {
		return nil, err
	}
	f, err := t.Stack.Open(rel)
	if err != nil {
		return nil, err
	}
	return &verifiedFile{f, c}, nil
}

// explain adds the sandbox's id to an error. If the cause is a removal of the sandbox, explain
// says so: a removal cuts off the files first.
func (c *Changes) explain(err error) error {
	if isOfDisk(err) {
		return c.explainGone(err)
	}
	return errorAbout(c.id, err)
}

// explainGone says if the error comes of the sandbox's removal, or of a lost write, and
// else returns it.
func (c *Changes) explainGone(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), availableTime)
	defer cancel()
	switch gone := c.source.Verify(ctx, true); { // after a removal that is going on
	case errors.Is(gone, ErrNotFound):
		return &Error{c.id, errRemoved}
	case errors.Is(gone, ErrDamaged):
		return errorAbout(c.id, gone)
	}
	return errorAbout(c.id, err)
}

// isOfDisk tells whether an error is of a file system that was cut off by a removal, or
// has lost some of itself (ext4: EFSBADCRC, EFSCORRUPTED).
func isOfDisk(err error) bool {
	numbers := []error{unix.EIO, unix.EBADMSG, unix.EUCLEAN, unix.ESTALE}
	return slices.ContainsFunc(numbers, func(number error) bool { return errors.Is(err, number) })
}

// prefix begins the paths of a tree in a saved file.
func (c *Changes) prefix(t *layer.Tree) string {
	if len(c.trees) == 1 {
		return ""
	}
	return strings.Trim(t.Path, "/")
}

// find is the tree that holds a path, and the path in it.
func (c *Changes) find(name string) (*layer.Tree, string, error) {
	if len(c.trees) == 0 {
		return nil, "", &Error{c.id, errNoOverlay}
	}
	if name == "" { // as a script's unset variable is
		return nil, "", errors.New("a path is empty; leave it out to mean all")
	}
	if !path.IsAbs(name) && len(c.trees) == 1 {
		name = path.Join(c.trees[0].Path, name)
	}
	if !path.IsAbs(name) {
		return nil, "", outsideError(fmt.Sprintf("%q: with several overlays (%s) name absolute paths", name, strings.Join(c.Trees(), ", ")))
	}
	name = path.Clean(name)
	var in *layer.Tree
	for _, t := range c.trees {
		if hostpaths.Within(name, t.Path) && (in == nil || len(t.Path) > len(in.Path)) {
			in = t
		}
	}
	if in == nil {
		return nil, "", outsideError(fmt.Sprintf("%s lies in none of the overlays: %s", name, strings.Join(c.Trees(), ", ")))
	}
	return in, strings.Trim(strings.TrimPrefix(name, in.Path), "/"), nil
}

// An outsideError is the fs.ErrNotExist of a path that is in no overlay, where there
// may be a file all the same.
type outsideError string

func (e outsideError) Error() string      { return string(e) }
func (outsideError) Is(target error) bool { return target == fs.ErrNotExist }

// errNoOverlay is about a sandbox.
var errNoOverlay = fmt.Errorf("has no overlay, so that no change is on a layer: %w", ErrUnavailable)

// A choice has the chosen paths of each tree. Nil: all paths of all trees.
type choice map[*layer.Tree][]string

// pathsOf are the chosen paths of a tree: no paths for the whole tree. It is false if nothing
// of the tree was chosen.
func (c choice) pathsOf(t *layer.Tree) ([]string, bool) {
	paths, some := c[t]
	if slices.Contains(paths, "") {
		paths = nil
	}
	return paths, some || c == nil
}

// hasHost says whether a path of the host was chosen.
func (c choice) hasHost(trees []*layer.Tree) bool {
	return slices.ContainsFunc(trees, func(t *layer.Tree) bool {
		_, ok := c.pathsOf(t)
		return ok && !t.Image
	})
}

// choose sorts paths by their trees. A directory above a tree chooses all of it.
func (c *Changes) choose(paths []string) (choice, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	chosen := choice{}
	for _, name := range paths {
		above := false
		for _, t := range c.trees {
			if path.IsAbs(name) && t.Path != path.Clean(name) && hostpaths.Within(t.Path, path.Clean(name)) {
				chosen[t] = append(chosen[t], "")
				above = true
			}
		}
		t, rel, err := c.find(name)
		if err == nil {
			chosen[t] = append(chosen[t], rel)
		} else if !above {
			return nil, err
		}
	}
	return chosen, nil
}

// Notes are sentences for a person, mostly none. Some are about an overlay that Apply
// refuses: the host has moved, replaced or deleted the directory, or the sandbox stopped
// while a transaction joined. The changes can still be read and saved. Other notes tell
// how an earlier apply ended that was killed.
func (c *Changes) Notes() []string {
	notes := slices.Clone(c.notes)
	for _, t := range c.trees {
		if note := t.Note(); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}
