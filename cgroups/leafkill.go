package cgroups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	return full, l.failed("look for processes in", err)
}

// populated looks in the first hierarchy only: each process that joins or leaves any other
// is there. On v1 the list of processes is made only if something is counted, since the
// kernel keeps the list for a second; a zombie counts, too.
func (l *Leaf) populated() (bool, error) {
	l.mu.Lock()
	p := l.places[0]
	l.mu.Unlock()
	return p.lists(l.name, func(file string, room []byte) ([]byte, error) { return l.read(p, file, room) })
}

// lists says whether the kernel lists a process in a leaf. count reads the file with the number of tasks.
func (p place) lists(leaf string, count func(file string, room []byte) ([]byte, error)) (bool, error) {
	var room [64]byte
	if !p.tree.v2 && slices.Contains(p.tree.controllers, "pids") { // the list below can be a second old
		tasks, err := count("/pids.current", room[:])
		if isGone(err) || bytes.Equal(tasks, []byte("0\n")) {
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
	said, err := p.read(leaf+file, room[:])
	return bytes.Contains(said, []byte(full)), unlessGone(err)
}

// PopulatedLeaves lists the names of the group's leaves in which a process lives. It opens no leaf.
func (g *Group) PopulatedLeaves() ([]string, error) {
	h, err := g.opened()
	if err != nil {
		return nil, unlessGone(err)
	}
	p := h.places[0] // each leaf is there
	dir, err := openBelow(p.dir, ".")
	if err != nil {
		return nil, unlessGone(err)
	}
	names, err := children(dir)
	if err := errors.Join(err, dir.Close()); err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", g.path, err)
	}
	var full []string
	for _, name := range names {
		if name == agentName {
			continue
		}
		lives, err := p.lists(name, func(file string, room []byte) ([]byte, error) { return p.read(name+file, room) })
		if err != nil {
			return nil, fmt.Errorf("look for processes in leaf %s of cgroup %s: %w", name, g.path, err)
		}
		if lives {
			full = append(full, name)
		}
	}
	return full, nil
}

// Pids lists the processes in the leaf, sorted; see [Group.Procs].
func (l *Leaf) Pids() ([]int, error) {
	return l.asGroup().Procs()
}

// Signal sends a signal to the present processes in the leaf, and never to another process
// that has got the number of one.
func (l *Leaf) Signal(sig unix.Signal) error {
	return l.failed("signal", l.asGroup().processes().signal(sig))
}

// Kill sends SIGKILL to every process in the leaf, and returns when no process is left. The
// processes cannot prevent this by forks. On v2 Kill uses cgroup.kill. On v1 it kills the
// processes one by one, then forbids forks, and kills again. It sends the signal at least
// once, also if ctx has ended. If processes are left when ctx ends, the error names them and
// wraps ctx's. The kill of an empty leaf is cheap.
//
// On v1, processes of a frozen group do not die. Kill returns ErrFrozen then, and the processes
// die when the group is thawed. Delete kills a process that joins after Kill. For a renewed
// leaf Kill does nothing.
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
	return l.failed("kill", err)
}

func (l *Leaf) killAll(ctx context.Context) error {
	ps := l.asGroup().processes()
	return ps.killAll(ctx, func(left members, again bool) error {
		if again {
			if frozen, err := l.parent.processes().frozenV1(); err != nil {
				return err
			} else if frozen {
				return fmt.Errorf("%v: %w", left, ErrFrozen)
			}
		}
		return l.strike(ctx, ps, left, again)
	})
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
	return unlessGone(l.writeFile("pids", "pids.max", "0"))
}

// strike kills the present processes of the leaf. Without a pids controller it freezes the
// leaf for that, so that they cannot fork. With one it first kills without forbidding
// forks: a process might end because of a refused fork.
func (l *Leaf) strike(ctx context.Context, ps processes, left members, again bool) error {
	_, ok := l.placeOf("pids")
	switch {
	case !ok || l.parent.host.Mode == V2:
		return ps.strike(ctx, left, again)
	case again && ctx.Err() != nil:
		return stillIn(ctx, left)
	case again:
		return ps.signal(unix.SIGKILL)
	}
	return errors.Join(ps.signal(unix.SIGKILL), l.forbidForks(), ps.signal(unix.SIGKILL))
}

// frozenV1 tells whether the group stands still, or is to, by the v1 freezer.
func (ps processes) frozenV1() (bool, error) {
	t, ok := ps.host.v1("freezer")
	if !ok {
		return false, nil
	}
	dir, err := t.open(ps.path)
	if err != nil {
		return false, unlessGone(err)
	}
	defer dir.Close()
	f := freezerOfV1(dir)
	thawed, err := f.hasLine(f.thawed)
	return err == nil && !thawed, unlessGone(err)
}

// Delete removes the leaf and closes it. A missing leaf is no error, so Delete can be
// called twice. While processes are in it, Delete tries again until ctx ends or 2 seconds
// have passed; then the error names them and wraps unix.EBUSY. After Kill it kills
// processes that joined since.
func (l *Leaf) Delete(ctx context.Context) error {
	return l.failed("delete", errors.Join(l.Close(), l.remove(ctx)))
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
		if left, err = rmdir(left, l.name); err != nil || len(left) == 0 {
			return err
		}
		if killed {
			if err := l.killAll(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		if p.wait(ctx) != nil {
			ps := l.asGroup().processes()
			return ps.busy(ps.host.trees)
		}
	}
}

// rmdir removes a leaf where it is empty and returns where it is not.
func rmdir(places []place, leaf string) (busy []place, err error) {
	for _, p := range places {
		switch err := rmdirAt(p.dir, leaf); {
		case errors.Is(err, unix.EBUSY):
			busy = append(busy, p)
		case err != nil && !isGone(err):
			return nil, err
		}
	}
	return busy, nil
}
