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

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Freezer stops all processes of a cgroup and of the cgroups below it. It has the directory of
// the cgroup in a hierarchy that can freeze, and the file names and values of this hierarchy
// (cgroup-v1/freezer-subsystem.rst; cgroup-v2.rst, cgroup.freeze and cgroup.events).
type Freezer struct {
	dir          *os.File
	file         string // to write
	freeze, thaw string // the values to write
	state        string // file to read
	frozen       string // line in state once all is frozen
	thawed       string // line in state once nothing is
	sticks       bool   // a freeze can get stuck, as on v1: see Freeze
}

func freezerOfV1(dir *os.File) *Freezer {
	return &Freezer{dir, "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN", "THAWED", true}
}

func freezerOfV2(dir *os.File) *Freezer {
	return &Freezer{dir, "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1", "frozen 0", false}
}

// OpenFreezer opens the freezer of a cgroup. v1 is the cgroup's directory in the v1 hierarchy
// "freezer", v2 its directory in v2; each may be empty. OpenFreezer prefers v1. If both are
// empty, the error is errors.ErrUnsupported.
func OpenFreezer(v1, v2 string) (*Freezer, error) {
	open, path := freezerOfV1, v1
	if v1 == "" {
		open, path = freezerOfV2, v2
	}
	if path == "" {
		return nil, errNoFreezer()
	}
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return open(dir), nil
}

func errNoFreezer() error {
	return fmt.Errorf("no hierarchy has a freezer: %w", errors.ErrUnsupported)
}

// freezer opens the freezer of the group: in v1 if the host has a v1 freezer, as libcontainer
// does, else in v2 (Linux 5.2). The caller must close it.
func (ps processes) freezer() (*Freezer, error) {
	v1, hasV1 := ps.host.v1("freezer")
	v2, hasV2 := ps.host.unified()
	if !hasV1 && !hasV2 {
		return nil, errNoFreezer()
	}
	if hasV1 {
		dir, err := v1.open(ps.path)
		if err == nil || !hasV2 || !isGone(err) {
			return freezerOfV1(dir), err
		}
	}
	dir, err := v2.open(ps.path)
	return freezerOfV2(dir), err
}

// Freeze freezes the group, as [Freezer.Freeze] does. [Group.Kill] also ends frozen processes.
func (g *Group) Freeze(ctx context.Context) error {
	f, err := g.processes().freezer()
	if err != nil {
		return err
	}
	return errors.Join(f.Freeze(ctx), f.Close())
}

// Close closes the freezer. Frozen processes stay frozen.
func (f *Freezer) Close() error { return f.dir.Close() }

// Freeze stops every process, and returns when all of them stand still. If ctx ends earlier,
// Freeze thaws the processes again, and the error wraps ctx's error. On v1 a frozen process
// cannot die.
func (f *Freezer) Freeze(ctx context.Context) (err error) {
	defer func() {
		if err != nil { // a group left half frozen could neither run nor die
			err = errors.Join(err, unlessGone(f.Thaw()))
		}
	}()
	// Each turn writes the value again: v1 can stay in FREEZING after a fork at the wrong
	// moment (runc writes up to 1,000 times). It stays there for ever if the freezer has
	// stopped a thread that an execve waits for: this thread ends only after a thaw.
	for p, turn := (pause{}), 1; ; turn++ {
		if f.sticks && turn%8 == 0 {
			if err := f.Thaw(); err != nil {
				return err
			}
		}
		if err := writeFile(f.dir, f.file, f.freeze); err != nil {
			return err
		}
		if done, err := f.hasLine(f.frozen); done || err != nil {
			return err
		}
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
}

// Thaw lets the processes go on, unless a group above this one is frozen.
func (f *Freezer) Thaw() error { return writeFile(f.dir, f.file, f.thaw) }

// Freezing says whether a freeze has begun and some processes still run.
func (f *Freezer) Freezing() (bool, error) {
	if f.sticks {
		return f.hasLine("FREEZING")
	}
	asked, err := readFile(f.dir, f.file)
	if err != nil || strings.TrimSpace(asked) != f.freeze {
		return false, err
	}
	return f.hasLine(f.thawed)
}

// hasLine tells whether the state file has the line.
func (f *Freezer) hasLine(line string) (bool, error) {
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

// pause is a wait for a change that the kernel does not announce: 50 µs at first, then
// longer and longer, 10 ms at most.
type pause struct{ next time.Duration }

// wait returns nil after the pause, or the cause of ctx as soon as ctx ends.
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

// Frozen tells whether the group is frozen or a freeze has begun.
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
	f    *Freezer
}

// OpenState opens the group's freezer. The caller must close the State.
func (g *Group) OpenState() (*State, error) {
	f, err := g.processes().freezer()
	if err == nil {
		defer f.dir.Close()
		var file *os.File
		if file, err = openFile(f.dir, f.state, unix.O_RDONLY); err == nil {
			return &State{file, f}, nil
		}
	}
	return nil, fmt.Errorf("look whether cgroup %s is frozen: %w", g.path, err)
}

// Frozen tells whether the group is frozen or a freeze has begun. If the group was removed,
// the error is fs.ErrNotExist.
func (s *State) Frozen() (bool, error) {
	var room [256]byte
	n, err := descriptor.Retry(func() (int, error) { return unix.Pread(int(s.file.Fd()), room[:], 0) })
	if errors.Is(err, unix.ENODEV) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", s.file.Name(), err)
	}
	state := string(room[:n])
	if s.f.sticks { // v1 shows FREEZING first
		return strings.TrimSpace(state) != s.f.thawed, nil
	}
	return strings.Contains(state, s.f.frozen), nil
}

// Close closes the freezer.
func (s *State) Close() error { return s.file.Close() }
