package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze stops every process in the group and below it, and returns when all
// of them stand still. If ctx ends before that, the group is thawed again and
// the error wraps ctx's. Freezing is by the v1 freezer where the host has it,
// as libcontainer does it, and by cgroup.freeze (Linux 5.2) elsewhere; a host
// with neither gives errors.ErrUnsupported.
//
// A frozen process can be killed: at once on v2, through Kill on v1.
func (g *Group) Freeze(ctx context.Context) error {
	if err := g.freeze(ctx); err != nil {
		return fmt.Errorf("freeze cgroup %s: %w", g.path, err)
	}
	return nil
}

// Thaw lets the processes of the group go on, and returns when the group is no
// longer frozen. A group that is not frozen stays as it is. While a group
// above it is frozen it cannot thaw, and Thaw waits until ctx ends.
func (g *Group) Thaw(ctx context.Context) error {
	if err := g.thaw(ctx); err != nil {
		return fmt.Errorf("thaw cgroup %s: %w", g.path, err)
	}
	return nil
}

// freezer is a group's directory in a hierarchy that can freeze, and how the
// two interfaces say it (cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst,
// cgroup.freeze and cgroup.events).
type freezer struct {
	dir          *os.File
	file         string // to write
	freeze, thaw string // the values to write
	state        string // file to read
	frozen       string // line in state once all is frozen
	thawed       string // line in state once nothing is
	sticks       bool   // see freeze
}

// freezer opens the place where the group freezes. The caller closes dir.
func (g *Group) freezer() (freezer, error) {
	v1, hasV1 := g.host.v1("freezer")
	v2, hasV2 := g.host.unified()
	if !hasV1 && !hasV2 {
		return freezer{}, fmt.Errorf("no hierarchy has a freezer: %w", errors.ErrUnsupported)
	}
	if hasV1 {
		dir, err := v1.open(g.path)
		if err == nil || !hasV2 || !gone(err) {
			return freezer{dir, "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN", "THAWED", true}, err
		}
	}
	dir, err := v2.open(g.path)
	return freezer{dir, "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1", "frozen 0", false}, err
}

func (g *Group) freeze(ctx context.Context) error {
	f, err := g.freezer()
	if err != nil {
		return err
	}
	defer f.dir.Close()
	// Written again at each turn: v1 can stay in FREEZING when a process was
	// forked at the wrong moment (runc gives the group up to 1,000 writes), and
	// for ever when a thread was caught that an execve waits for: it ends once
	// it is let go.
	for p, turn := (pause{}), 1; ; turn++ {
		if f.sticks && turn%8 == 0 {
			if err = writeFile(f.dir, f.file, f.thaw); err != nil {
				break
			}
		}
		if err = writeFile(f.dir, f.file, f.freeze); err != nil {
			break
		}
		var done bool
		if done, err = f.is(f.frozen); done || err != nil {
			break
		}
		if err = p.wait(ctx); err != nil {
			break
		}
	}
	if err != nil {
		// A group left half frozen could neither run nor die.
		undo := writeFile(f.dir, f.file, f.thaw)
		if gone(undo) {
			undo = nil
		}
		return errors.Join(err, undo)
	}
	return nil
}

func (g *Group) thaw(ctx context.Context) error {
	f, err := g.freezer()
	if err != nil {
		return err
	}
	defer f.dir.Close()
	if err := writeFile(f.dir, f.file, f.thaw); err != nil {
		return err
	}
	for p := (pause{}); ; {
		if done, err := f.is(f.thawed); done || err != nil {
			return err
		}
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
}

// is tells whether the state file has the line.
func (f freezer) is(line string) (bool, error) {
	state, err := readFile(f.dir, f.state)
	if err != nil {
		return false, err
	}
	for l := range strings.Lines(state) {
		if strings.TrimSpace(l) == line {
			return true, nil
		}
	}
	return false, nil
}

// pause waits for something the kernel does not announce: 50 µs at first, then
// longer and longer, 10 ms at most.
type pause struct{ next time.Duration }

// wait returns nil after the pause, or ctx's error as soon as that ends.
func (p *pause) wait(ctx context.Context) error {
	p.next = min(max(p.next*2, 50*time.Microsecond), 10*time.Millisecond)
	timer := time.NewTimer(p.next)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Frozen tells whether the group stands still, or is about to.
func (g *Group) Frozen() (bool, error) {
	state, err := g.OpenState()
	if err != nil {
		return false, err
	}
	defer state.Close()
	return state.Frozen()
}

// State is a group's freezer, held open for a caller that asks often.
type State struct {
	file *os.File
	f    freezer
}

// OpenState opens the group's freezer. The caller closes it.
func (g *Group) OpenState() (*State, error) {
	f, err := g.freezer()
	if err == nil {
		defer f.dir.Close()
		var file *os.File
		if file, err = openFile(f.dir, f.state, unix.O_RDONLY); err == nil {
			return &State{file, f}, nil
		}
	}
	return nil, fmt.Errorf("look whether cgroup %s is frozen: %w", g.path, err)
}

// Frozen tells whether the group stands still, or is about to. One that was
// removed is fs.ErrNotExist.
func (s *State) Frozen() (bool, error) {
	var room [256]byte
	n, err := retryEINTR(func() (int, error) { return unix.Pread(int(s.file.Fd()), room[:], 0) })
	if errors.Is(err, unix.ENODEV) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", s.file.Name(), err)
	}
	state := string(room[:n])
	if s.f.sticks { // v1 says FREEZING first
		return strings.TrimSpace(state) != s.f.thawed, nil
	}
	return strings.Contains(state, s.f.frozen), nil
}

// Close lets go of it.
func (s *State) Close() error { return s.file.Close() }
