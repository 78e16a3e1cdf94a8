package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// deleteWait bounds how long Delete waits for dying processes, with any ctx.
const deleteWait = 2 * time.Second

// Delete removes the group and those below it, children first, from every
// hierarchy. A group that is not there is no error. While processes are in it
// the kernel refuses (EBUSY): Delete tries again until ctx ends or 2 seconds
// have passed, and then the error names the processes and wraps unix.EBUSY.
// Delete kills nothing: see Kill.
//
// Only groups are removed, and only below the group: at a directory where
// something else is mounted Delete stops with an error.
func (g *Group) Delete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deleteWait)
	defer cancel()
	left := g.host.trees
	var errs []error
	for p := (pause{}); ; {
		var busy []tree
		for _, t := range left {
			switch err := t.remove(g.path); {
			case errors.Is(err, unix.EBUSY):
				busy = append(busy, t)
			case err != nil:
				errs = append(errs, err)
			}
		}
		left = busy
		if len(left) == 0 {
			break
		}
		if p.wait(ctx) != nil {
			errs = append(errs, g.processes().busy(left))
			break
		}
	}
	return g.failed("delete", errors.Join(errs...))
}

// busy names the groups that could not be removed, and their processes.
func (ps processes) busy(left []tree) error {
	dirs := make([]string, len(left))
	for i, t := range left {
		dirs[i] = t.dir
	}
	m, err := ps.members()
	if err != nil {
		return errors.Join(unix.EBUSY, err)
	}
	return fmt.Errorf("%w: in %s, with processes %v", unix.EBUSY, strings.Join(dirs, " "), m)
}

// remove removes the group at group and all below it from one hierarchy.
func (t tree) remove(group string) error {
	return unlessGone(t.withDir(path.Dir(group), func(parent *os.File) error { return removeBelow(parent, path.Base(group)) }))
}

// removeBelow removes the group name in parent, children first. It tries the
// group itself first, which mostly has none.
func removeBelow(parent *os.File, name string) error {
	first := rmdirAt(parent, name)
	if first == nil || isGone(first) {
		return nil
	}
	// Busy, or a read-only mount, which says so before it says that there is
	// no such group.
	dir, err := openBelow(parent, name)
	if err != nil {
		return unlessGone(err)
	}
	defer dir.Close()
	names, err := children(dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return first
	}
	for _, child := range names {
		if err := removeBelow(dir, child); err != nil {
			return err
		}
	}
	return unlessGone(rmdirAt(parent, name))
}

func rmdirAt(dir *os.File, name string) error {
	return change(dir, "rmdir", name, func(fd int) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) })
}
