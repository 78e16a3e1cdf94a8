package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// leafViews are the ways in which a host can hold leaves: as it is; without a
// pids controller; with all the controllers mounted together; and by the v2
// hierarchy of a hybrid host, which has none.
func leafViews(t *testing.T) map[string]*Host {
	t.Helper()
	all := views(t)
	h := realHost(t)
	pids, ok := h.v1("pids")
	if !ok {
		return all
	}
	without := *h
	without.trees = slices.DeleteFunc(slices.Clone(h.trees), func(t tree) bool { return t.dir == pids.dir })
	all["v1 without pids"] = &without
	together := *h
	together.trees = []tree{{dir: pids.dir, controllers: append([]string{"cpu"}, h.leafControllers()...)}}
	all["v1 mounted together"] = &together
	return all
}

// divided is the box's group as a host sees it, ready for leaves, with a first
// process in it.
func (b *box) divided(host *Host) (*Group, *program) {
	b.t.Helper()
	agent := b.run("echo")
	g := b.group(host)
	b.t.Cleanup(func() { g.Close() })
	if err := g.Divide(agent.Process.Pid, 0); err != nil {
		b.t.Fatal(err)
	}
	return g, agent
}

// newLeaf makes a leaf of a group. It is gone when the test's box is.
func newLeaf(t testing.TB, g *Group, name string, opts LeafOptions) *Leaf {
	t.Helper()
	l, err := g.CreateLeaf(name, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// runIn starts a program that brings itself into a leaf and then begins.
func runIn(t testing.TB, l *Leaf, name string, args ...string) *program {
	t.Helper()
	p := startIn(t, l, name, args...)
	p.release(t)
	return p
}

// startIn starts a program that brings itself into a leaf and waits there. In
// the hierarchies where the leaf is not it is in the leaf's group.
func startIn(t testing.TB, l *Leaf, name string, args ...string) *program {
	t.Helper()
	p := newProgram(name, args...)
	dir, tasks := l.Join()
	if dir != nil {
		p.SysProcAttr = &unix.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	if len(tasks) > 0 {
		p.ExtraFiles = tasks
		p.Env = append(p.Env, joinVariable+"="+strconv.Itoa(len(tasks)))
	}
	p.start(t)
	p.joined(t)
	for _, other := range l.parent.host.trees { // where a child of the agent is from birth
		if !slices.ContainsFunc(l.places, func(p place) bool { return p.tree.dir == other.dir }) {
			writeString(t, other.path(l.parent.path)+"/cgroup.procs", strconv.Itoa(p.Process.Pid))
		}
	}
	return p
}

// joined waits until the program has joined a leaf: then it executed itself
// without the variable.
func (p *program) joined(t testing.TB) {
	t.Helper()
	testhost.Eventually(t, "the program is in its leaf", func() bool {
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/environ")
		return err == nil && len(environ) > 0 && !bytes.Contains(environ, []byte(joinVariable))
	})
}

func TestLeafIsMadeOnceAndDeletedTwice(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			if _, err := g.CreateLeaf("exec-1", LeafOptions{}); !errors.Is(err, fs.ErrExist) {
				t.Errorf("made twice: %v", err)
			}
			if names, err := g.Leaves(); err != nil || !slices.Equal(names, []string{"exec-1"}) {
				t.Errorf("leaves %q, %v", names, err)
			}
			for range 2 {
				if err := l.Delete(bounded(t)); err != nil {
					t.Error(err)
				}
			}
			if names, err := g.Leaves(); err != nil || len(names) != 0 {
				t.Errorf("leaves %q, %v", names, err)
			}
			if _, err := l.Usage(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("usage of one that is gone: %v", err)
			}
			if err := l.Kill(bounded(t)); err != nil {
				t.Errorf("kill of one that is gone: %v", err)
			}
			if _, err := g.OpenLeaf("exec-1"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("opened one that is gone: %v", err)
			}
		})
	}
}

func TestLeafNameIsOfOneGroup(t *testing.T) {
	g, _ := newBox(t, nil).divided(nil)
	for _, name := range []string{"", ".", "..", "a/b", "agent", "pids.max", "a.b", "a\n", strings.Repeat("x", 256)} {
		l, err := g.CreateLeaf(name, LeafOptions{})
		if err == nil {
			t.Errorf("made a leaf %q", name)
			l.Delete(bounded(t))
		}
	}
	if names, err := g.Leaves(); len(names) != 0 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
}

func TestLeafOfAMissingGroup(t *testing.T) {
	for view, h := range leafViews(t) {
		g, err := h.Open(testPrefix + "missing")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.CreateLeaf("exec-1", LeafOptions{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: CreateLeaf: %v", view, err)
		}
		if _, err := g.OpenLeaf("exec-1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: OpenLeaf: %v", view, err)
		}
	}
}

// What a leaf that could not be made completely leaves behind: nothing.
func TestLeafIsMadeWhollyOrNot(t *testing.T) {
	b := newBox(t, nil)
	g, _ := b.divided(nil)
	home, err := g.opened()
	if err != nil {
		t.Fatal(err)
	}
	last := home.places[len(home.places)-1]
	if len(home.places) == 1 {
		t.Skip("needs controllers on v1: on v2 none can be left out by not mounting it")
	}
	obstacle := last.tree.path(b.path) + "/exec-1"
	if err := os.Mkdir(obstacle, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := g.CreateLeaf("exec-1", LeafOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Errorf("the obstacle: %v", err)
	}
	if names, err := g.Leaves(); len(names) != 0 || err != nil {
		t.Errorf("left: %q, %v", names, err)
	}
}

// Opened by another Group, as after a restart of who made it.
func TestLeafIsFoundAgain(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			b := newBox(t, nil)
			g, _ := b.divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			p := runIn(t, l, "echo")
			if !p.echoes(t, patience) {
				t.Fatal("no answer")
			}
			if err := errors.Join(l.Close(), l.Close(), g.Close(), g.Close()); err != nil {
				t.Fatal(err)
			}
			again := b.group(host)
			t.Cleanup(func() { again.Close() })
			l, err := again.OpenLeaf("exec-1")
			if err != nil {
				t.Fatal(err)
			}
			second := runIn(t, l, "echo")
			if err := l.Kill(bounded(t)); err != nil {
				t.Error(err)
			}
			if !p.killed() || !second.killed() {
				t.Errorf("%v, %v", p.ProcessState, second.ProcessState)
			}
			if err := l.Delete(bounded(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// Who looks at a leaf that another removes finds it or does not.
func TestLeafIsOpenedWhileItIsDeleted(t *testing.T) {
	g, _ := newBox(t, nil).divided(nil)
	for range 300 {
		l := newLeaf(t, g, "exec-1", LeafOptions{})
		deleted := make(chan error, 1)
		go func() { deleted <- l.Delete(bounded(t)) }()
		var err error
		for err == nil {
			var found *Leaf
			if found, err = g.OpenLeaf("exec-1"); err == nil {
				err = found.Close()
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("open: %v", err)
		}
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
	}
}

func TestLeafHoldsNothingAfterDelete(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			count := func() int {
				open, err := os.ReadDir("/proc/self/fd")
				if err != nil {
					t.Fatal(err)
				}
				return len(open)
			}
			var before, after int
			for i := range 20 {
				if i == 1 { // by then the group is open
					before = count()
				}
				l := newLeaf(t, g, "exec-1", LeafOptions{Pids: 0})
				if _, err := l.Usage(); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
					t.Fatal(err)
				}
				after = count()
			}
			if after > before { // fewer where what an earlier test has ended was still open
				t.Errorf("%d descriptors, %d before", after, before)
			}
		})
	}
}

// Sixteen at once do not get in each other's way, nor in that of the group.
func TestLeavesAtOnce(t *testing.T) {
	g, agent := newBox(t, nil).divided(nil)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			l, err := g.CreateLeaf(fmt.Sprintf("exec-%d", i), LeafOptions{Pids: 20})
			if err != nil {
				t.Error(err)
				return
			}
			_, usageErr := l.Usage()
			_, leavesErr := g.Leaves()
			_, statsErr := g.Stats()
			if err := errors.Join(usageErr, leavesErr, statsErr, l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if names, err := g.Leaves(); err != nil || len(names) != 0 {
		t.Errorf("%q, %v", names, err)
	}
	if !agent.echoes(t, patience) {
		t.Error("the agent is dead")
	}
}

// The group's own operations reach what is in its leaves.
func TestGroupCoversItsLeaves(t *testing.T) {
	b := newBox(t, nil)
	g, agent := b.divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{})
	p := runIn(t, l, "memory", "32")
	p.line(t)
	if procs, err := g.Procs(); err != nil || len(procs) != 2 || !slices.Contains(procs, p.Process.Pid) {
		t.Errorf("Procs: %v, %v", procs, err)
	}
	s, err := g.Stats()
	if err != nil || s.CPU <= 0 || b.limits.Memory.Enforced && s.Memory < 32*mebibyte {
		t.Errorf("Stats: %+v, %v", s, err)
	}
	if err := g.Freeze(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.in.Write([]byte("x\n")); err != nil {
		t.Fatal(err)
	}
	if full, err := l.Populated(); !full || err != nil {
		t.Errorf("frozen: %v, %v", full, err)
	}
	if err := errors.Join(g.Thaw(bounded(t)), g.LiftThrottles()); err != nil {
		t.Fatal(err)
	}
	if got := p.line(t); got != "x" {
		t.Errorf("after thawing: %q", got)
	}
	if _, err := g.Events(); err != nil {
		t.Error(err)
	}
	if _, err := g.Settings(); err != nil {
		t.Error(err)
	}
	killAndCheck(t, g)
	if !p.killed() || !agent.killed() {
		t.Errorf("%v, %v", p.ProcessState, agent.ProcessState)
	}
	if err := g.Delete(bounded(t)); err != nil {
		t.Error(err)
	}
	if err := l.Delete(bounded(t)); err != nil {
		t.Errorf("delete of a leaf that went with its group: %v", err)
	}
}

// On v1 a group's limits of disk traffic do not bind those below it.
func TestLeafDoesNotEscapeIOLimits(t *testing.T) {
	name, disk := mebibyteOnDisk(t)
	b := newBox(t, nil)
	enforced(t, "io", b.limits.IO)
	b.limitReads(disk, 2*mebibyte)
	g, _ := b.divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{})
	took, err := time.ParseDuration(runIn(t, l, "read", name).line(t))
	if err != nil || took < 300*time.Millisecond {
		t.Errorf("1 MiB at 2 MiB/s took %v, %v", took, err)
	}
	u, err := l.Usage()
	if err != nil || u.IORead != Unknown && u.IORead < mebibyte {
		t.Errorf("%+v, %v", u, err)
	}
	if b.host.Mode == V2 && u.IORead < mebibyte {
		t.Errorf("read %d bytes, want 1 MiB", u.IORead)
	}
}
