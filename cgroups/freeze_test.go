package cgroups

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// echoes tells whether the program answers within a while.
func (p *program) echoes(t testing.TB, within time.Duration) bool {
	t.Helper()
	if _, err := io.WriteString(p.in, "x\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.pipe.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := p.out.ReadString('\n')
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

func TestFreezeStopsAndThawResumes(t *testing.T) {
	for name, host := range views(t) {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, nil)
			g := b.group(host)
			p := b.run("echo")
			if !p.echoes(t, patience) {
				t.Fatal("no answer")
			}
			for range 2 { // idempotent
				if err := g.Freeze(bounded(t)); err != nil {
					t.Fatal(err)
				}
			}
			if p.echoes(t, 50*time.Millisecond) {
				t.Error("an answer while frozen")
			}
			for range 2 {
				if err := g.Thaw(bounded(t)); err != nil {
					t.Fatal(err)
				}
			}
			if !p.echoes(t, patience) {
				t.Error("no answer after thawing")
			}
		})
	}
}

func TestThawBelowAFrozenGroupWaitsUntilContextEnds(t *testing.T) {
	for name, host := range views(t) {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, nil)
			b.run("echo")
			parent, err := host.Open(b.parent)
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Freeze(bounded(t)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(bounded(t), 20*time.Millisecond)
			defer cancel()
			if err := b.group(host).Thaw(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if err := parent.Thaw(bounded(t)); err != nil {
				t.Error(err)
			}
			if err := b.group(host).Thaw(bounded(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// On v1 a thread that is frozen before it could end keeps the execve that waits
// for it from ever standing still.
func TestFreezeCatchesWhatExecutesAllTheTime(t *testing.T) {
	for name, host := range views(t) {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, nil)
			g := b.group(host)
			b.run("execs").line(t)
			for range 20 {
				if err := g.Freeze(bounded(t)); err != nil {
					t.Fatal(err)
				}
				if err := g.Thaw(bounded(t)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(3 * time.Millisecond) // to be somewhere else
			}
		})
	}
}

// A kernel that never reports the group as frozen.
func TestFreezeThatDoesNotFinishIsUndone(t *testing.T) {
	g := fakeV2(t, map[string]string{"cgroup.freeze": "0", "cgroup.events": "populated 1\nfrozen 0\n"})
	ctx, cancel := context.WithTimeout(bounded(t), 5*time.Millisecond)
	defer cancel()
	if err := g.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if got := readString(t, g.host.root+"/box/cgroup.freeze"); got != "0" {
		t.Errorf("cgroup.freeze is left at %s", got)
	}
}

func TestFreezeWithoutFreezerIsUnsupported(t *testing.T) {
	dir := t.TempDir()
	h := &Host{Mode: V1, root: dir, trees: []tree{{dir: dir, controllers: []string{"memory"}}}}
	g, err := h.Open("/box")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Freeze(bounded(t)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}
