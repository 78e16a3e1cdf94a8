package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// renewed renews a leaf as soon as the kernel has freed what was in it.
func renewed(t *testing.T, l *Leaf, name string) *Leaf {
	t.Helper()
	var next *Leaf
	testhost.Eventually(t, "the leaf is renewed", func() bool {
		u, err := l.Usage()
		if err == nil {
			next, err = l.Renew(name, u)
		}
		if err != nil && !errors.Is(err, errStays) && !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { next.Close() })
	return next
}

// v1Views are those of leafViews in which leaves can be renewed, and have what is
// counted.
func v1Views(t *testing.T) map[string]*Host {
	t.Helper()
	all := leafViews(t)
	for view, host := range all {
		if host.Mode == V2 || len(host.trees) == 1 {
			delete(all, view)
		}
	}
	if len(all) == 0 {
		t.Skip("needs the controllers on v1")
	}
	return all
}

func TestRenewedLeafIsAsNew(t *testing.T) {
	for view, host := range v1Views(t) {
		t.Run(view, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			p := runIn(t, l, "memory", "32")
			p.line(t)
			p.in.Close()
			p.wait(patience)
			if err := runIn(t, l, "spin", "50ms").wait(patience); err != nil {
				t.Fatal(err)
			}
			next := renewed(t, l, "exec-2")
			if names, err := g.Leaves(); err != nil || !slices.Equal(names, []string{"exec-2"}) {
				t.Errorf("leaves %q, %v", names, err)
			}
			u, err := next.Usage()
			if err != nil || u.CPU > 10*time.Millisecond || u.MemoryPeak > renewable || u.PidsLimitHits > 0 {
				t.Errorf("%+v, %v", u, err)
			}
			second := runIn(t, next, "echo")
			// Whoever still has the leaf that it was does nothing to what it is.
			if err := errors.Join(l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
				t.Error(err)
			}
			if full, err := l.Populated(); full || err != nil {
				t.Errorf("the former leaf: %v, %v", full, err)
			}
			if _, err := l.Usage(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("usage of the former leaf: %v", err)
			}
			if !second.echoes(t, patience) {
				t.Fatal("what runs in the next leaf was killed through the former")
			}
			if pids, err := next.Pids(); err != nil || !slices.Equal(pids, []int{second.Process.Pid}) {
				t.Errorf("%v, %v", pids, err)
			}
			if err := errors.Join(next.Kill(bounded(t)), next.Delete(bounded(t))); err != nil {
				t.Error(err)
			}
			if names, err := g.Leaves(); err != nil || len(names) != 0 {
				t.Errorf("left: %q, %v", names, err)
			}
		})
	}
}

// What may not be used again stays as it is, and can be deleted.
func TestLeafIsNotRenewed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	host := realHost(t)
	v1Views(t)
	for name, spoil := range map[string]func(l *Leaf) (string, Usage){
		"it was killed": func(l *Leaf) (string, Usage) {
			if err := l.Kill(bounded(t)); err != nil {
				t.Error(err)
			}
			return "exec-2", Usage{}
		},
		"it was limited": func(l *Leaf) (string, Usage) {
			if err := l.Limit(LeafLimits{Pids: 50}); err != nil {
				t.Error(err)
			}
			return "exec-2", Usage{}
		},
		"something lives in it": func(l *Leaf) (string, Usage) {
			p := runIn(t, l, "echo")
			t.Cleanup(func() { p.Process.Kill() })
			return "exec-2", Usage{}
		},
		"its files stay in memory": func(l *Leaf) (string, Usage) {
			if err := runIn(t, l, "fill", file, "8").wait(patience); err != nil {
				t.Error(err)
			}
			return "exec-2", Usage{}
		},
		"memory ran out":     func(*Leaf) (string, Usage) { return "exec-2", Usage{OOMKills: 1} },
		"a fork was refused": func(*Leaf) (string, Usage) { return "exec-2", Usage{PidsLimitHits: 1} },
		"it has read":        func(*Leaf) (string, Usage) { return "exec-2", Usage{IORead: 1} },
		"it has written":     func(*Leaf) (string, Usage) { return "exec-2", Usage{IOWritten: 1} },
		"a name of another":  func(*Leaf) (string, Usage) { return agentName, Usage{} },
		"a path as its name": func(*Leaf) (string, Usage) { return "../exec-2", Usage{} },
		"the same name":      func(*Leaf) (string, Usage) { return "exec-1", Usage{} },
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := newBox(t, nil).divided(host)
			l := newLeaf(t, g, "exec-1", LeafOptions{})
			next, u := spoil(l)
			if _, err := l.Renew(next, u); err == nil {
				t.Error("it was renewed")
			}
			if names, err := g.Leaves(); err != nil || !slices.Equal(names, []string{"exec-1"}) {
				t.Errorf("leaves %q, %v", names, err)
			}
			if err := errors.Join(l.Kill(bounded(t)), l.Delete(bounded(t))); err != nil {
				t.Error(err)
			}
			if names, err := g.Leaves(); err != nil || len(names) != 0 {
				t.Errorf("left: %q, %v", names, err)
			}
		})
	}
}

func TestLeafIsNotRenewedOnV2(t *testing.T) {
	host, ok := views(t)["v2 of hybrid"]
	if !ok {
		host = realHost(t)
	}
	if host.Mode != V2 {
		t.Skip("needs the v2 hierarchy")
	}
	g, _ := newBox(t, nil).divided(host)
	if _, err := newLeaf(t, g, "exec-1", LeafOptions{}).Renew("exec-2", Usage{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// A leaf has one name in all hierarchies, also where the last refuses the next.
func TestLeafIsRenamedWhollyOrNot(t *testing.T) {
	b := newBox(t, nil)
	g, _ := b.divided(nil)
	v1Views(t)
	l := newLeaf(t, g, "exec-1", LeafOptions{})
	last := l.places[len(l.places)-1]
	obstacle := last.tree.path(b.path) + "/exec-2"
	if err := os.Mkdir(obstacle, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Renew("exec-2", Usage{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	for _, p := range l.places {
		if _, err := os.Stat(p.tree.path(b.path) + "/exec-1"); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(obstacle); err != nil {
		t.Error(err)
	}
	if p := runIn(t, l, "echo"); !p.echoes(t, patience) {
		t.Error("no answer")
	}
}
