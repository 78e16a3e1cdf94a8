package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Root opens the sandbox's files, which the test sees through [sandbox.Files]: a temporary directory
// of the host, removed with the sandbox. At first the directory has an empty workspace and tmp, and
// copies of the Config's Overlays at their own paths. A transaction has a directory of its own. The
// caller must close the Root.
func (p *Program) Root() (*os.Root, error) {
	if p.transaction != nil {
		return os.OpenRoot(p.transaction.dir)
	}
	return p.instance.root()
}

// fileState is the state of an instance's files. The instance's mutex guards it.
type fileState struct {
	dir string // of all files below; empty until it is needed
	// host has the files of the overlaid directories when they were copied, begun those with
	// which the sandbox has begun there. Paths are relative to /.
	host, begun tree
	// layers are the overlaid directories.
	layers []*overlay
	// joined are the transactions that can be undone, the oldest first.
	joined []joinedTransaction
}

// top is the directory of the sandbox's files.
func (s *fileState) top() string { return s.dir + "/root" }

// root opens the sandbox's files.
func (i *instance) root() (*os.Root, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rootLocked()
}

// lockRoot opens the sandbox's files, and holds the mutex until done.
func (i *instance) lockRoot() (root *os.Root, done func(), err error) {
	i.mu.Lock()
	if root, err = i.rootLocked(); err != nil {
		i.mu.Unlock()
		return nil, nil, err
	}
	return root, func() { root.Close(); i.mu.Unlock() }, nil
}

// rootLocked makes the directory when it is first needed.
func (i *instance) rootLocked() (*os.Root, error) {
	if i.ctx.Err() != nil {
		return nil, sandbox.ErrNotFound
	}
	if i.dir == "" {
		dir, err := os.MkdirTemp("", "sandboxtest")
		if err != nil {
			return nil, fmt.Errorf("files of a fake: %w", err)
		}
		i.dir = dir
		if err := errors.Join(os.MkdirAll(i.top()+"/workspace", 0o755), os.Mkdir(i.top()+"/tmp", 0o755)); err != nil {
			return nil, fmt.Errorf("files of a fake: %w", err)
		}
	}
	return os.OpenRoot(i.top())
}

// begin copies the overlaid directories, and the files of a snapshot.
func (i *instance) begin(from *snapshot) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.info.Config.Overlays) == 0 && from == nil {
		return nil
	}
	root, err := i.rootLocked()
	if err != nil {
		return err
	}
	defer root.Close()
	i.host = tree{}
	for _, dir := range i.info.Config.Overlays {
		if err := i.addOverlay(dir, from); err != nil {
			return &sandbox.ConfigError{Reason: fmt.Sprintf("overlay %s: %v", dir, err)}
		}
	}
	i.begun = maps.Clone(i.host)
	if from != nil {
		for _, o := range from.layers {
			i.begun.removeBelow(o.rel)
		}
		maps.Copy(i.begun, from.files)
	}
	for _, o := range i.layers {
		if err := root.MkdirAll(o.rel, 0o755); err != nil {
			return fmt.Errorf("files of a fake: %w", err)
		}
	}
	return i.begun.write(root, slices.Sorted(maps.Keys(i.begun)))
}

// addOverlay adds an overlaid directory: as a snapshot has it, or a copy of the host's.
func (i *instance) addOverlay(dir string, from *snapshot) error {
	o, err := newOverlay(dir, len(i.layers))
	if err != nil {
		return err
	}
	i.layers = append(i.layers, o)
	if from != nil {
		for _, before := range from.layers {
			if before.path == dir {
				o.forked, o.since, o.stamps = true, before.since, maps.Clone(before.stamps)
				maps.Copy(i.host, from.host.subtree(o.rel).movedTo(o.rel))
				return nil
			}
		}
	}
	return i.copyHost(o)
}

// tick is more than the time by which a file's change time can lag behind the clock.
const tick = 20 * time.Millisecond

// copyHost reads an overlaid directory of the host. Each change of the host after it has a
// later time.
func (i *instance) copyHost(o *overlay) error {
	o.since, o.stamps = time.Now(), nil
	defer time.Sleep(tick)
	now, err := readDir(o.path)
	if err != nil {
		return err
	}
	i.host.removeBelow(o.rel)
	maps.Copy(i.host, now.movedTo(o.rel))
	return nil
}

// checkOverlays makes the paths of overlays absolute.
func checkOverlays(dirs []string) ([]string, error) {
	var all []string
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		if dir == "/" || slices.ContainsFunc(all, func(other string) bool { return hostpaths.Within(dir, other) || hostpaths.Within(other, dir) }) {
			return nil, fmt.Errorf("overlay %s %w with a fake, which copies each overlay; name directories other than / that do not lie in each other", dir, sandbox.ErrUnavailable)
		}
		all = append(all, dir)
	}
	return all, nil
}

// remove ends the instance and removes its files.
func (i *instance) remove() error {
	i.end()
	i.mu.Lock()
	dir := i.dir
	i.dir = ""
	i.mu.Unlock()
	if dir == "" {
		return nil
	}
	return os.RemoveAll(dir)
}

// StartFiles implements [sandbox.Filer].
func (i *instance) StartFiles(_ context.Context, stdin, stdout *os.File) (sandbox.FileServer, error) {
	root, err := i.root()
	if err != nil {
		return nil, err
	}
	s, err := files.NewService(root, "/", stdin, stdout)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(i.ctx, func() { _ = s.Close() }) // always nil
	return s, nil
}
