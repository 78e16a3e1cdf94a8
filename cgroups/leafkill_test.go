package cgroups

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestLeafKillEndsItsOwnOnly(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			g, agent := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			sibling := newLeaf(t, g, "exec-2", LeafOptions{})
			if full, err := l.Populated(); full || err != nil {
				t.Errorf("an empty leaf: %v, %v", full, err)
			}
			p, other, stopped := runIn(t, l, "echo"), runIn(t, sibling, "echo"), runIn(t, l, "echo")
			if !p.echoes(t, patience) || !other.echoes(t, patience) || !stopped.echoes(t, patience) {
				t.Fatal("no answer")
			}
			if err := stopped.Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if full, err := l.Populated(); !full || err != nil {
				t.Errorf("with processes: %v, %v", full, err)
			}
			if pids, err := l.Pids(); err != nil || len(pids) != 2 {
				t.Errorf("pids %v, %v, want %d and %d", pids, err, p.Process.Pid, stopped.Process.Pid)
			}
			for range 2 {
				if err := l.Kill(bounded(t)); err != nil {
					t.Error(err)
				}
			}
			if !p.killed() || !stopped.killed() {
				t.Errorf("%v, %v", p.ProcessState, stopped.ProcessState)
			}
			if !agent.echoes(t, patience) || !other.echoes(t, patience) {
				t.Error("the agent or the sibling is dead")
			}
			if full, err := l.Populated(); full || err != nil {
				t.Errorf("after Kill: %v, %v", full, err)
			}
			if err := l.Delete(bounded(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A bomb against its leaf's own limit, beside a sibling that may fork.
func TestLeafKillEndsAForkBomb(t *testing.T) {
	b := newBox(t, nil)
	enforced(t, "pids", b.limits.Pids)
	g, agent := b.divided(nil)
	// A bomb of few processes: the sibling has to get its turns of the processors.
	l := newLeaf(t, g, "exec-1", LeafOptions{Pids: 40})
	sibling := newLeaf(t, g, "exec-2", LeafOptions{Pids: 20})
	runIn(t, l, "bomb").line(t)
	testhost.Eventually(t, "forks that are refused", func() bool {
		u, err := l.Usage()
		return err == nil && u.PidsLimitHits > 0
	})
	if pids, err := l.Pids(); err != nil || len(pids) < 20 {
		t.Errorf("the bomb's processes: %v, %v", pids, err)
	}
	other := runIn(t, sibling, "forks")
	t.Logf("the sibling's forks, until refused: %s", other.line(t))
	if b.host.Mode != V2 {
		if err := l.forbidForks(); err != nil { // as Kill does, which may leave them no time to fork
			t.Fatal(err)
		}
		testhost.Eventually(t, "forks that are stopped", func() bool {
			u, err := l.Usage()
			return err == nil && u.ForksStopped > 0
		})
	}
	start := time.Now()
	if err := l.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed in %v", time.Since(start))
	if full, err := l.Populated(); full || err != nil {
		t.Errorf("after Kill: %v, %v", full, err)
	}
	if err := l.Delete(bounded(t)); err != nil {
		t.Error(err)
	}
	if !agent.echoes(t, patience) || !other.echoes(t, patience) {
		t.Error("the agent or the sibling is dead")
	}
}

// A bomb where the pids controller is not mounted, within the group's limit
// that another view of the host sets.
func TestLeafKillEndsAForkBombWithoutPids(t *testing.T) {
	host, ok := leafViews(t)["v1 without pids"]
	if !ok {
		t.Skip("the pids controller is not on v1: nothing to unmount")
	}
	b := newBox(t, nil)
	g, agent := b.divided(host)
	bounds, err := b.host.Open(b.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bounds.Close() })
	l := newLeaf(t, g, "exec-1", LeafOptions{})
	if !slices.Contains(l.places[0].tree.controllers, "freezer") {
		t.Error("the leaf cannot be frozen")
	}
	bound, err := bounds.leaf("exec-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := bound.addPlace(bound.home.places[0]); err != nil { // pids
		t.Fatal(err)
	}
	t.Cleanup(func() { bound.Close() })
	if err := bound.Limit(LeafLimits{Pids: 200}); err != nil {
		t.Fatal(err)
	}
	p := newProgram("bomb")
	_, tasks := l.Join()
	p.ExtraFiles = append(tasks, bound.tasks...)
	p.Env = append(p.Env, joinVariable+"="+strconv.Itoa(len(p.ExtraFiles)))
	p.start(t)
	p.joined(t)
	p.release(t)
	p.line(t)
	testhost.Eventually(t, "200 tasks", func() bool {
		pids, err := l.Pids()
		return err == nil && len(pids) >= 100
	})
	start := time.Now()
	if err := l.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("killed in %v", time.Since(start))
	if err := l.Delete(bounded(t)); err != nil {
		t.Error(err)
	}
	if !agent.echoes(t, patience) {
		t.Error("the agent is dead")
	}
}

func TestLeafKillFindsTheDoubleForked(t *testing.T) {
	g, _ := newBox(t, nil).divided(nil)
	l := newLeaf(t, g, "exec-1", LeafOptions{})
	p := runIn(t, l, "daemon")
	pid, err := strconv.Atoi(p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	p.wait(patience) // the daemon is nobody's child now
	if full, err := l.Populated(); !full || err != nil {
		t.Errorf("with a daemon: %v, %v", full, err)
	}
	if err := l.Kill(bounded(t)); err != nil {
		t.Error(err)
	}
	testhost.Eventually(t, "the daemon is dead", func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n == 1 && err == nil
	})
	if err := l.Delete(bounded(t)); err != nil {
		t.Error(err)
	}
}

// In a paused group: v2 kills, v1 says what keeps the processes from dying.
func TestLeafKillBelowAFrozenGroup(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			g, agent := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			p := runIn(t, l, "echo")
			if !p.echoes(t, patience) {
				t.Fatal("no answer")
			}
			switch err := g.Freeze(bounded(t)); {
			case errors.Is(err, errors.ErrUnsupported):
				return // all in one hierarchy, as one of the views has it
			case err != nil:
				t.Fatal(err)
			}
			err := l.Kill(bounded(t))
			_, v1 := host.v1("freezer")
			if v1 != errors.Is(err, ErrFrozen) || !v1 && err != nil {
				t.Errorf("got %v", err)
			}
			if v1 {
				if err := g.Thaw(bounded(t)); err != nil {
					t.Fatal(err)
				}
			}
			if !p.killed() {
				t.Errorf("%v", p.ProcessState)
			}
			if err := errors.Join(g.Thaw(bounded(t)), l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
				t.Error(err)
			}
			if !agent.echoes(t, patience) {
				t.Error("the agent is dead")
			}
		})
	}
}

func TestLeafDeleteKillsWhoCameAfterKill(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			if err := l.Kill(bounded(t)); err != nil {
				t.Fatal(err)
			}
			late := newProgram("echo")
			late.start(t)
			for _, p := range l.places {
				writeString(t, p.dir.Name()+"/exec-1/cgroup.procs", strconv.Itoa(late.Process.Pid))
			}
			if err := l.Delete(bounded(t)); err != nil {
				t.Error(err)
			}
			if late.wait(patience); late.ProcessState == nil { // by then it may have failed to make a thread
				t.Error("the latecomer lives")
			}
		})
	}
}

func TestLeafDeleteOfABusyOneNamesTheProcesses(t *testing.T) {
	for view, host := range leafViews(t) {
		t.Run(view, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			p := runIn(t, l, "echo")
			if !p.echoes(t, patience) {
				t.Fatal("no answer")
			}
			ctx, cancel := context.WithTimeout(bounded(t), 20*time.Millisecond)
			defer cancel()
			if err := l.Delete(ctx); !errors.Is(err, unix.EBUSY) || !contains(err, strconv.Itoa(p.Process.Pid)) {
				t.Errorf("got %v", err)
			}
			if !p.echoes(t, patience) {
				t.Error("the process is dead")
			}
			p.in.Close()
			p.wait(patience)
			if err := l.Delete(bounded(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPopulatedLeavesAreThoseWithProcesses(t *testing.T) {
	for name, host := range leafViews(t) {
		t.Run(name, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			newLeaf(t, g, "empty", LeafOptions{})
			full := newLeaf(t, g, "full", LeafOptions{})
			p := runIn(t, full, "echo")
			if names, err := g.PopulatedLeaves(); err != nil || !slices.Equal(names, []string{"full"}) {
				t.Errorf("got %q, %v", names, err)
			}
			if err := full.Kill(bounded(t)); err != nil || !p.killed() {
				t.Fatal(err)
			}
			testhost.Eventually(t, "no leaf has processes", func() bool {
				names, err := g.PopulatedLeaves()
				return err == nil && len(names) == 0
			})
		})
	}
}
