package cgroups

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// killCases are the states in which processes have to be killed. set prepares
// them and returns programs that have to be dead afterwards.
var killCases = map[string]func(t *testing.T, b *box, host *Host) []*program{
	"running": func(_ *testing.T, b *box, _ *Host) []*program {
		return []*program{b.run("echo"), b.run("echo")}
	},
	"stopped": func(t *testing.T, b *box, _ *Host) []*program {
		p := b.run("echo")
		if err := p.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		return []*program{p}
	},
	"frozen": func(t *testing.T, b *box, host *Host) []*program {
		p := b.run("echo")
		if err := b.group(host).Freeze(bounded(t)); err != nil {
			t.Fatal(err)
		}
		return []*program{p}
	},
	"in nested groups, one of them frozen": func(t *testing.T, b *box, host *Host) []*program {
		var all []*program
		for _, path := range []string{b.path + "/nested", b.path + "/nested/deep"} {
			b.mkdir(path)
			p := newProgram("echo")
			p.start(t)
			b.join(p.Process.Pid, path)
			p.release(t)
			all = append(all, p)
		}
		deep, err := host.Open(b.path + "/nested/deep")
		if err != nil {
			t.Fatal(err)
		}
		if err := deep.Freeze(bounded(t)); err != nil {
			t.Fatal(err)
		}
		return all
	},
	"busy": func(_ *testing.T, b *box, _ *Host) []*program {
		return []*program{b.run("spin", "1h")}
	},
}

func TestKillLeavesNothingAlive(t *testing.T) {
	for view, host := range views(t) {
		for state, prepare := range killCases {
			t.Run(view+"/"+state, func(t *testing.T) {
				b := newBox(t, nil)
				programs := prepare(t, b, host)
				outsider := newProgram("echo")
				outsider.start(t)
				b.mkdir(b.parent + "/sibling")
				b.join(outsider.Process.Pid, b.parent+"/sibling")
				outsider.release(t)
				killAndCheck(t, b.group(host))
				for _, p := range programs {
					if !p.killed() {
						t.Errorf("%v", p.ProcessState)
					}
				}
				if !outsider.echoes(t, patience) {
					t.Error("the sibling does not answer")
				}
			})
		}
	}
}

func killAndCheck(t *testing.T, g *Group) {
	t.Helper()
	start := time.Now()
	if err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed in %v", time.Since(start))
	if procs, err := g.Procs(); len(procs) != 0 || err != nil {
		t.Errorf("left: %v, %v", procs, err)
	}
}

func TestKillFindsAProcessInOneHierarchyOnly(t *testing.T) {
	for _, only := range realHost(t).trees {
		t.Run(strings.TrimPrefix(only.dir, mountRoot), func(t *testing.T) {
			b := newBox(t, nil)
			p := newProgram("echo")
			p.start(t)
			writeString(t, only.path(b.path)+"/cgroup.procs", strconv.Itoa(p.Process.Pid))
			p.release(t)
			killAndCheck(t, b.group(nil))
			if !p.killed() {
				t.Errorf("%v", p.ProcessState)
			}
		})
	}
}

// A bomb of at most 200 tasks, in each view of the host, and by the way that a
// kernel without cgroup.kill needs.
func TestKillEndsAForkBomb(t *testing.T) {
	kills := map[string]func(*Group, context.Context) error{}
	for view, host := range views(t) {
		kills[view] = func(g *Group, ctx context.Context) error {
			g.host = host
			return g.Kill(ctx)
		}
		if _, ok := host.unified(); ok {
			kills[view+" without cgroup.kill"] = func(g *Group, ctx context.Context) error {
				g.host = host
				return killByHand(ctx, g)
			}
		}
	}
	for name, kill := range kills {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, &parentLimits{pids: 200})
			enforced(t, "pids", b.limits.Pids)
			p := b.run("bomb")
			p.line(t)
			g := b.group(nil)
			testhost.Eventually(t, "200 tasks", func() bool {
				s, err := g.Stats()
				return err == nil && s.Pids >= 195
			})
			ctx, cancel := context.WithTimeout(bounded(t), patience)
			defer cancel()
			start := time.Now()
			seen := b.group(nil) // which kill makes the view that it has
			if err := kill(seen, ctx); err != nil {
				t.Fatal(err)
			}
			t.Logf("killed in %v", time.Since(start))
			if procs, err := seen.Procs(); len(procs) != 0 || err != nil {
				t.Errorf("left: %v, %v", procs, err)
			}
			if err := g.Delete(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// killByHand is Kill on a kernel before 5.14.
func killByHand(ctx context.Context, g *Group) error {
	for {
		if m, err := g.processes().members(); err != nil || m.isEmpty() {
			return err
		}
		if err := errors.Join(g.processes().killFrozen(ctx), g.processes().drain(ctx), ctx.Err()); err != nil {
			return err
		}
	}
}

func TestKillStrikesEvenIfContextHasEnded(t *testing.T) {
	b := newBox(t, nil)
	p := b.run("echo")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.group(nil).Kill(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if !p.killed() {
		t.Errorf("%v", p.ProcessState)
	}
}

func TestKillGivesUpWhenContextEnds(t *testing.T) {
	// A process below a v1-frozen parent cannot die.
	b := newBox(t, nil)
	if _, ok := b.host.v1("freezer"); !ok {
		t.Skip("no v1 freezer: nothing here keeps a process from dying")
	}
	p := b.run("echo")
	parent, err := b.host.Open(b.parent)
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Freeze(bounded(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
	defer cancel()
	err = b.group(nil).Kill(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), members{pids: []int{p.Process.Pid}}.String()) {
		t.Errorf("got %v, want one that names %d", err, p.Process.Pid)
	}
	if err := parent.Kill(bounded(t)); err != nil { // thaws
		t.Error(err)
	}
}

func TestKillRefusesItsOwnGroup(t *testing.T) {
	b := newBox(t, nil)
	p := newProgram("kill-own-group", b.path)
	p.start(t)
	b.join(p.Process.Pid, b.path)
	p.release(t)
	if said := p.line(t); !strings.Contains(said, "this very process is in it") {
		t.Errorf("the program says %q", said)
	}
	if err := p.wait(patience); err != nil {
		t.Errorf("the program: %v", err)
	}
}

func TestProcsAreThoseOfAllHierarchiesOnce(t *testing.T) {
	b := newBox(t, nil)
	b.mkdir(b.path + "/nested")
	var want []int
	for _, path := range []string{b.path, b.path + "/nested"} {
		p := newProgram("echo")
		p.start(t)
		b.join(p.Process.Pid, path)
		want = append(want, p.Process.Pid)
	}
	slices.Sort(want)
	if got, err := b.group(nil).Procs(); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
