package cgroups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrFrozen is the condition that processes were killed and cannot die before
// the group above them is thawed, as with the v1 freezer.
var ErrFrozen = errors.New("frozen: they die as soon as the group is thawed")

// Populated tells whether a process lives in the leaf. One that has ended and
// was not waited for does not.
func (l *Leaf) Populated() (bool, error) {
	full, err := l.populated()
	if err != nil {
		return false, fmt.Errorf("look for processes in leaf %s of cgroup %s: %w", l.name, l.parent.path, err)
	}
	return full, nil
}

// populated looks in the first hierarchy only: each process that joins or leaves any other
// is there. On v1 the list of processes is made only if something is counted, since the
// kernel keeps the list for a second; a zombie counts, too.
func (l *Leaf) populated() (bool, error) {
	l.mu.Lock()
	p := l.places[0]
	l.mu.Unlock()
	var room [64]byte
	if !p.tree.v2 && slices.Contains(p.tree.controllers, "pids") {
		tasks, err := l.read(p, "/pids.current", room[:])
		if gone(err) || bytes.Equal(tasks, []byte("0\n")) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	file, full := "/cgroup.procs", "\n"
	if p.tree.v2 {
		file, full = "/cgroup.events", "populated 1\n"
	}
	// Opened each time: on v1 a list that is kept open shows its old content.
	said, err := p.read(l.name+file, room[:])
	if gone(err) {
		return false, nil
	}
	return bytes.Contains(said, []byte(full)), err
}

// Pids lists the processes in the leaf, sorted; see [Group.Procs].
func (l *Leaf) Pids() ([]int, error) {
	return l.asGroup().Procs()
}

// Kill sends SIGKILL to every process in the leaf and returns when none is left, whatever
// they do meanwhile: on v2 by cgroup.kill, on v1 by killing one by one, and again when the
// right to fork is taken away. It strikes at least once. If processes are left when ctx
// ends, the error names them and wraps ctx's. An empty leaf costs next to nothing.
//
// If the leaf's group is frozen, which on v1 keeps processes from dying, Kill answers
// ErrFrozen at once, and they die when it is thawed. A process that joins afterwards is
// killed by Delete. Nothing is left of a leaf that was renewed.
func (l *Leaf) Kill(ctx context.Context) error {
	l.mu.Lock()
	l.killed = true
	renewed := l.renewed
	l.mu.Unlock()
	if renewed {
		return nil // the name may soon belong to another leaf
	}
	full, err := l.populated()
	if full && err == nil {
		err = l.killAll(ctx)
	}
	if err != nil {
		return fmt.Errorf("kill leaf %s of cgroup %s: %w", l.name, l.parent.path, err)
	}
	return nil
}

func (l *Leaf) killAll(ctx context.Context) error {
	g := l.asGroup()
	for struck := false; ; struck = true {
		left, err := g.members()
		switch {
		case err != nil:
			return err
		case left.none():
			return nil
		case slices.Contains(left.pids, os.Getpid()):
			return errors.New("this very process is in it")
		}
		if struck {
			frozen, err := l.parent.frozenV1()
			switch {
			case err != nil:
				return err
			case frozen:
				return fmt.Errorf("%v: %w", left, ErrFrozen)
			case ctx.Err() != nil:
				return fmt.Errorf("still in it: %v: %w", left, context.Cause(ctx))
			}
		}
		if err := l.strike(ctx, g, left, struck); err != nil {
			return err
		}
		if err := g.drain(ctx); err != nil {
			return err
		}
	}
}

// forbidForks does so on v1, if the leaf has the pids controller, and has Usage leave out
// later refusals.
func (l *Leaf) forbidForks() error {
	var room [256]byte
	hits, err := l.figure(figuresV1[3], room[:])
	if err != nil {
		return err
	}
	l.mu.Lock()
	if !l.forkless {
		l.forkless, l.hits = true, hits
	}
	l.mu.Unlock()
	if err := l.set("pids", "pids.max", "0"); err != nil && !gone(err) {
		return err
	}
	return nil
}

// strike kills the present processes of the leaf. Without a pids controller it freezes the
// leaf for that, so that they cannot fork. With one it first kills without forbidding
// forks: a process might end because of a refused fork.
func (l *Leaf) strike(ctx context.Context, g *Group, left members, again bool) error {
	_, ok := l.at("pids")
	switch {
	case !ok || l.parent.host.Mode == V2:
		return g.strike(ctx, left, again)
	case again:
		return g.signal()
	}
	return errors.Join(g.signal(), l.forbidForks(), g.signal())
}

// frozenV1 tells whether the group stands still, or is to, by the v1 freezer.
func (g *Group) frozenV1() (bool, error) {
	t, ok := g.host.v1("freezer")
	if !ok {
		return false, nil
	}
	dir, err := t.open(g.path)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	var room [64]byte
	state, err := place{tree: t, dir: dir}.read("freezer.state", room[:])
	if gone(err) {
		return false, nil
	}
	return err == nil && !bytes.HasPrefix(state, []byte("THAWED")), err
}

// Delete removes the leaf and closes it. A missing leaf is no error, so Delete can be
// called twice. While processes are in it, Delete tries again until ctx ends or 2 seconds
// have passed; then the error names them and wraps unix.EBUSY. After Kill it kills
// processes that joined since.
func (l *Leaf) Delete(ctx context.Context) error {
	if err := errors.Join(l.Close(), l.remove(ctx)); err != nil {
		return fmt.Errorf("delete leaf %s of cgroup %s: %w", l.name, l.parent.path, err)
	}
	return nil
}

func (l *Leaf) remove(ctx context.Context) error {
	l.mu.Lock()
	left := slices.Clone(l.places)
	killed := l.killed
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, deleteWait)
	defer cancel()
	for p := (pause{}); ; {
		var err error
		if left, err = l.rmdir(left); err != nil || len(left) == 0 {
			return err
		}
		if killed {
			if err := l.killAll(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		if p.wait(ctx) != nil {
			g := l.asGroup()
			return g.busy(g.host.trees)
		}
	}
}

// rmdir removes the leaf where it is empty and returns where it is not.
func (l *Leaf) rmdir(places []place) (busy []place, err error) {
	for _, p := range places {
		switch err := rmdirAt(p.dir, l.name); {
		case errors.Is(err, unix.EBUSY):
			busy = append(busy, p)
		case err != nil && !gone(err) && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return busy, nil
}
