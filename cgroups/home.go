package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
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

func (g *Group) openV1(h *home) error {
	h.io = g.host.countsIO()
	for _, controller := range g.host.leafControllers() {
		if controller == "blkio" && !h.io {
			continue // it would cost and tell nothing
		}
		t, ok := g.host.v1(controller)
		if !ok || slices.ContainsFunc(h.places, func(p place) bool { return p.tree.dir == t.dir }) {
			continue // not mounted, or together with one before
		}
		dir, err := t.open(g.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		h.places = append(h.places, place{tree: t, dir: dir})
		if controller == "blkio" {
			if err := h.places[len(h.places)-1].openThrottles(); err != nil {
				return err
			}
		}
		if controller == "memory" {
			// Otherwise the group's limit does not bind its leaves.
			if err := useHierarchy(t, g.path); err != nil {
				return err
			}
		}
	}
	if len(h.places) == 0 {
		return fs.ErrNotExist
	}
	t, ok := g.host.v1("cpu")
	if !ok || slices.ContainsFunc(h.places, func(p place) bool { return p.tree.dir == t.dir }) {
		return nil
	}
	dir, err := t.open(g.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h.cpu = place{tree: t, dir: dir}
	return nil
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
	fd, err := retryEINTR(func() (int, error) {
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
	for _, file := range []string{
		"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
		"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device",
	} {
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
		n, err := retryEINTR(func() (int, error) { return unix.Pread(int(f.Fd()), room[:], 0) })
		if err != nil && !gone(err) {
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
	if err := h.close(); err != nil {
		return fmt.Errorf("close cgroup %s: %w", g.path, err)
	}
	return nil
}
