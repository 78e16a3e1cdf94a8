package cgroups

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// place is a group's directory in one hierarchy.
type place struct {
	tree tree
	dir  *os.File
	// throttles are the files with the limits of disk traffic, if those do not bind groups
	// below, as on v1 (cgroup-v1/blkio-controller.rst, "Hierarchical Cgroups").
	throttles []*os.File
}

// A home is the place of a group's leaves: the group's directory in each hierarchy with
// facts about leaves. It is opened for the first leaf and held, because a path from the
// mount point costs as much as the work at its end.
type home struct {
	places []place // the first tells whether a leaf has processes
	cpu    place   // v1: for a leaf with a limit of processor time; dir is nil if it is among places, or nowhere
	io     bool    // the kernel counts disk traffic
}

// leafControllers are those whose hierarchies a leaf is in on v1, in the order
// in which a process joins: with pids first nothing that runs in a leaf can
// fork past Kill. The freezer stands in for a pids controller that is missing.
func (h *Host) leafControllers() []string {
	first := "pids"
	if _, ok := h.v1(first); !ok {
		first = "freezer"
	}
	return []string{first, "memory", "cpuacct", "blkio"}
}

// opened returns the group's home.
func (g *Group) opened() (*home, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.home != nil {
		return g.home, nil
	}
	open := g.openV1
	if g.host.Mode == V2 {
		open = g.openV2
	}
	h := &home{}
	if err := open(h); err != nil {
		return nil, errors.Join(err, h.close())
	}
	g.home = h
	return h, nil
}

func (g *Group) openV1(h *home) (err error) {
	h.io = g.host.countsIO()
	for _, controller := range g.host.leafControllers() {
		if controller == "blkio" && !h.io {
			continue // it would cost and tell nothing
		}
		p, err := h.open(g, controller)
		if err != nil {
			return err
		}
		if p.dir == nil {
			continue
		}
		switch controller {
		case "blkio":
			err = p.openThrottles()
		case "memory":
			// Otherwise the group's limit does not bind its leaves.
			err = useHierarchy(p.tree, g.path)
		}
		h.places = append(h.places, p)
		if err != nil {
			return err
		}
	}
	if len(h.places) == 0 {
		return fs.ErrNotExist
	}
	h.cpu, err = h.open(g, "cpu")
	return err
}

// open opens the group's directory where a v1 controller is mounted. The place has
// none where the controller is not mounted, or together with one of places, or the
// group is not there.
func (h *home) open(g *Group, controller string) (place, error) {
	t, ok := g.host.v1(controller)
	if !ok || slices.ContainsFunc(h.places, func(p place) bool { return p.tree.dir == t.dir }) {
		return place{}, nil
	}
	dir, err := t.open(g.path)
	return place{tree: t, dir: dir}, ignore(err, fs.ErrNotExist)
}

// countsIO tells whether v1 counts disk traffic. Of a disk it does once a
// throttle was ever set on it (block/blk-throttle.h blk_should_throtl, Linux
// 6.10); then the root counts it too.
func (h *Host) countsIO() bool {
	t, ok := h.v1("blkio")
	if !ok {
		return false
	}
	table, err := os.ReadFile(t.dir + "/" + blkioFile)
	return err == nil && bytes.Contains(table, []byte(" Read "))
}

// openV2 opens the group as the root of a mount of its own, in no namespace:
// the descriptor of a leaf goes to a process in the sandbox, and from one on
// the host's mount "../../.." leads to the host's root.
func (g *Group) openV2(h *home) error {
	t, _ := g.host.unified()
	dir, err := t.open(g.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	fd, err := descriptor.Retry(func() (int, error) {
		return unix.OpenTree(int(dir.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	})
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: dir.Name(), Err: err}
	}
	h.places, h.io = append(h.places, place{tree: t, dir: os.NewFile(uintptr(fd), dir.Name())}), true
	return nil
}

// openThrottles opens them once: they are read for each leaf.
func (p *place) openThrottles() error {
	for _, file := range throttleFiles() {
		f, err := openFile(p.dir, file, unix.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		p.throttles = append(p.throttles, f)
	}
	return nil
}

// throttled tells whether the directory has a limit of disk traffic that does
// not bind those below it. A limit that holds is worth more than a count.
func (p place) throttled() (bool, error) {
	for _, f := range p.throttles {
		var room [1]byte
		n, err := descriptor.Retry(func() (int, error) { return unix.Pread(int(f.Fd()), room[:], 0) })
		if err != nil && !isGone(err) {
			return false, &fs.PathError{Op: "read", Path: f.Name(), Err: err}
		}
		if n > 0 {
			return true, nil
		}
	}
	return false, nil
}

func (h *home) close() error {
	var errs []error
	for _, p := range append(h.places, h.cpu) {
		for _, f := range p.throttles {
			errs = append(errs, f.Close())
		}
		if p.dir != nil {
			errs = append(errs, p.dir.Close())
		}
	}
	return errors.Join(errs...)
}

// Close releases all that the group holds for leaves. Its leaves must not be used after
// it. The group itself can be used, and holds again all that it needs.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.home
	g.home = nil
	if h == nil {
		return nil
	}
	return g.failed("close", h.close())
}
