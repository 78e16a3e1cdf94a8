package overlay

import (
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// A cover is a place of a sandbox with the mount that covers it, in the view of one
// command or for all.
type cover struct {
	record.Place
	// live is the present mount there, attached. lower is a detached mount of it, for a
	// place that is no overlay.
	live, lower *os.File
	// children are the mounts below the place that are no places themselves, by their
	// paths.
	children map[string]*os.File
	// mount covers the place.
	mount *os.File
}

// isRoot says that the place is the root of the sandbox's processes, which no mount can cover.
func (c *cover) isRoot() bool { return c.Path == "/" }

// renames says whether directories of the place may be renamed: [rootfs.Overlay]. places are all of the sandbox.
func (c *cover) renames(places []record.Place) bool {
	for rel := range c.children {
		if strings.Contains(rel, "/") {
			return false
		}
	}
	for _, p := range places {
		rel, below := strings.CutPrefix(p.Path, strings.TrimSuffix(c.Path, "/")+"/")
		if below && strings.Contains(rel, "/") {
			return false
		}
	}
	return true
}

// covers are the places of a sandbox. The caller must close them.
type covers []*cover

func newCovers(r record.Record) covers {
	var all covers
	for _, p := range r.Places() {
		all = append(all, &cover{Place: p, children: map[string]*os.File{}})
	}
	return all
}

func (all covers) close() {
	for _, c := range all {
		descriptor.Close(c.live, c.lower, c.mount)
		descriptor.Close(slices.Collect(maps.Values(c.children))...)
	}
}

// enter returns a thread in the sandbox's mount namespace, on which the present mount of
// each place was opened. The caller must stop the thread.
func (all covers) enter(init process.ID) (*mountns.Thread, error) {
	mounts, err := mountns.Of(init)
	if err != nil {
		return nil, err
	}
	thread, err := mountns.Enter(init)
	if err != nil {
		return nil, err
	}
	if err := thread.Do(func() error { return all.openMounts(mounts) }); err != nil {
		thread.Stop()
		return nil, err
	}
	return thread, nil
}

// checkBinds refuses if a writable bind of a directory is not among the covers: the directory is not at its path on the
// host any more. It runs on a thread in the sandbox's mount namespace.
func (all covers) checkBinds(r record.Record) error {
	for _, b := range r.Config.Binds {
		if !b.Writable || slices.ContainsFunc(all, func(c *cover) bool { return c.Path == b.Target }) {
			continue
		}
		info, err := os.Stat(b.Target)
		if err == nil && info.IsDir() {
			return &fault.ConfigError{Reason: fmt.Sprintf("the directory at %s in the sandbox is not at %s on the host any more; move it back there", b.Target, b.Source)}
		}
	}
	return nil
}

// openMounts opens the present mount of each place, on a thread in the sandbox's mount
// namespace. mounts are those of its PID 1.
func (all covers) openMounts(mounts []*mountinfo.Info) error {
	for _, c := range all {
		var err error
		if c.live, err = mountns.Open(c.Path); err != nil {
			return err
		}
		if c.Host != "" {
			if c.lower, err = mountns.Clone(c.live, false); err != nil {
				return err
			}
		}
		for _, rel := range all.mountsBelow(c.Path, mounts) {
			f, err := mountns.OpenInside(path.Join(c.Path, rel), unix.O_PATH)
			if err != nil {
				return err
			}
			tree, err := mountns.Clone(f, true)
			f.Close()
			if err != nil {
				return err
			}
			c.children[rel] = tree
		}
	}
	return nil
}

// mountsBelow are the present mounts below a place, and those to come.
func (all covers) mountsBelow(at string, mounts []*mountinfo.Info) (rels []string) {
	top := -1
	for _, m := range mounts {
		if m.Mountpoint == at {
			top = m.ID // the later one lies on the earlier
		}
	}
	for _, m := range mounts {
		rel := strings.TrimPrefix(m.Mountpoint, strings.TrimSuffix(at, "/")+"/")
		isPlace := slices.ContainsFunc(all, func(c *cover) bool { return c.Path == m.Mountpoint })
		if m.Parent == top && rel != m.Mountpoint && rel != "" && !isPlace && !slices.Contains(rels, rel) {
			rels = append(rels, rel)
		}
	}
	return rels
}

// mountAll covers each place, on a thread in the mount namespace in which all are to
// see it.
func (all covers) mountAll() error {
	for _, c := range all {
		// First the mounts below: some of them hide files.
		for rel, tree := range c.children {
			if err := mountns.AttachBelow(tree, c.mount, rel); err != nil {
				return fmt.Errorf("%s: %w", path.Join(c.Path, rel), err)
			}
		}
		attach := mountns.Attach
		if c.isRoot() {
			attach = func(tree *os.File, _ string) error { return mountns.Pivot(tree) }
		}
		if err := attach(c.mount, c.Path); err != nil {
			return err
		}
	}
	return nil
}
