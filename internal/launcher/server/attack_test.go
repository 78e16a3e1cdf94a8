package server

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// changeHands makes what is called so another user's sandbox, as if its owner had
// removed it and the other made one of that name.
func (f *fakeCore) changeHands(id string, to uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boxes[id].set(spec.StateStopped)
	f.boxes[id] = &fakeBox{core: f, kept: map[string]*fakeProcess{}, info: spec.Info{
		ID: id, Owner: to, State: spec.StateRunning, Pid: 2000,
	}}
}

// A name is the host's: between the look whose sandbox it is and the use of it,
// the sandbox may become another's.
func TestASandboxThatChangesHandsIsNotReached(t *testing.T) {
	for name, reach := range map[string]func(c *protocol.Client) error{
		"start": func(c *protocol.Client) error {
			p, err := c.Start(t.Context(), "x", spec.Command{Args: []string{"true"}}, [3]*os.File{})
			if err != nil {
				return err
			}
			defer p.Close()
			return second(p.Wait(t.Context()))
		},
		"stats": func(c *protocol.Client) error {
			return second(protocol.AskAbout(t.Context(), c, protocol.OpStats, "x", protocol.None{}))
		},
		"pause": func(c *protocol.Client) error {
			return protocol.Tell(t.Context(), c, protocol.OpPause, "x", protocol.None{})
		},
		"update": func(c *protocol.Client) error {
			return protocol.Tell(t.Context(), c, protocol.OpUpdate, "x", spec.Limits{Pids: 20})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Rule{User: "1001"}, Rule{User: "1002"})
			attacker := w.client(t, 1001)
			box(t, attacker, "x")
			w.handles.drop("x") // as after some idle seconds
			var once sync.Once
			w.core.before(&w.core.opening, func() { once.Do(func() { w.core.changeHands("x", 1002) }) })
			if err := reach(attacker); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("got %v", err)
			}
			theirs := w.core.box("x")
			if now := theirs.currentInfo(); now.Owner != 1002 || now.State != spec.StateRunning || theirs.execs > 0 || theirs.updated() != (spec.Limits{}) {
				t.Errorf("another's sandbox was reached: %+v, %d execs, %+v", now, theirs.execs, theirs.updated())
			}
		})
	}
}

// A request for a description looks at the owner, waits for its turn, and then looks again.
func TestASandboxThatChangesHandsIsNotDescribed(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"}, Rule{User: "1002"})
	attacker := w.client(t, 1001)
	box(t, attacker, "x")
	var looks atomic.Int32
	w.core.before(&w.core.describing, func() {
		if looks.Add(1) == 2 {
			w.core.changeHands("x", 1002)
		}
	})
	if i, err := attacker.Info(t.Context(), "x"); !errors.Is(err, fault.ErrNotFound) || looks.Load() < 2 {
		t.Errorf("%d looks: %+v, %v", looks.Load(), i, err)
	}
}

func TestASandboxThatChangesHandsIsNotRemoved(t *testing.T) {
	w := newWorld(t, Rule{User: "1001"}, Rule{User: "1002"})
	attacker := w.client(t, 1001)
	box(t, attacker, "x")
	w.core.before(&w.core.removing, func() { w.core.changeHands("x", 1002) })
	if err := attacker.Remove(t.Context(), "x"); err != nil {
		t.Errorf("got %v", err)
	}
	if theirs := w.core.box("x"); theirs == nil || theirs.currentInfo().State != spec.StateRunning {
		t.Error("another's sandbox was removed")
	}
}

// A sandbox that is there when its name is asked for again may be gone by the time
// it is that request's turn, and is then made: it counts all the same.
func TestASandboxThatIsReplacedCounts(t *testing.T) {
	w := newWorld(t, Rule{User: "1001", Sandboxes: 2})
	c := w.client(t, 1001)
	box(t, c, "a")
	box(t, c, "b")
	w.core.onCreate(func(context.Context) error { // as if it had to wait
		w.core.onCreate(nil)
		for _, id := range []string{"a", "b"} {
			if err := c.Remove(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		_, err := c.Create(t.Context(), protocol.Create{Name: "c"})
		return err
	})
	if i, err := c.Create(t.Context(), protocol.Create{Name: "a", Reuse: true}); err != nil || i.Reused {
		t.Fatalf("%+v, %v", i, err)
	}
	for _, name := range []string{"d", ""} {
		if _, err := c.Create(t.Context(), protocol.Create{Name: name}); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("one more than allowed: %v", err)
		}
	}
	if all, err := c.List(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

// Creates of one name at the same time take one place, with the last place too.
func TestCreatesOfOneNameHaveOnePlace(t *testing.T) {
	p := newPeer(&Rule{uid: 1001, Sandboxes: 2}, semaphore.NewWeighted(maxDescriptors))
	core := newFakeCore()
	take := func(name string) error { return p.takeSandbox(t.Context(), core, name) }
	for _, name := range []string{"", "a", "a"} {
		if err := take(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "b"} {
		if err := take(name); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%q: %v", name, err)
		}
	}
	p.endCreate("", "", errors.New("it failed"))
	if err := take("b"); err != nil {
		t.Error(err)
	}
}

// Each descriptor of a client can hold a thread of the launcher, and a Go program ends at 10,000
// threads. Root is in no bound of the users.
func TestAllUsersHaveABoundOfDescriptors(t *testing.T) {
	s := New(newFakeCore(), Rules{}, slog.New(slog.DiscardHandler))
	var peers []*peer
	for range 12 {
		peers = append(peers, newPeer(&Rule{uid: 1001, Descriptors: 1000}, s.descriptors))
	}
	taken := 0
	for _, p := range peers {
		for p.takeDescriptors(1) == nil {
			taken++
		}
	}
	if taken != maxDescriptors || taken > 9000 {
		t.Errorf("all users have %d descriptors", taken)
	}
	if err := peers[11].takeDescriptors(1); !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "of all users") {
		t.Errorf("one more: %v", err)
	}
	if err := newPeer(everything(0), s.descriptors).takeDescriptors(1); err != nil {
		t.Errorf("root: %v", err)
	}
	peers[0].leaveDescriptors(1)
	if err := peers[11].takeDescriptors(1); err != nil {
		t.Errorf("after one was given back: %v", err)
	}
}

// A sandbox that was made while others are listed has its place.
func TestSandboxesMadeMeanwhileHavePlaces(t *testing.T) {
	p := newPeer(&Rule{uid: 1001, Sandboxes: 1}, semaphore.NewWeighted(maxDescriptors))
	core := newFakeCore()
	if err := p.takeSandbox(t.Context(), core, "a"); err != nil {
		t.Fatal(err)
	}
	core.before(&core.listing, func() { p.endCreate("a", "a", nil) })
	if err := p.takeSandbox(t.Context(), core, "b"); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("one more than the rule allows: %v", err)
	}
	p.removed("a")
	core.before(&core.listing, nil)
	if err := p.takeSandbox(t.Context(), core, "b"); err != nil {
		t.Error(err)
	}
}

// The command's user becomes the owner of its pipes, so that a pipe of another
// user's, of which the client has one end, would be given away with the other.
func TestPipesOfOthersAreNoStdio(t *testing.T) {
	testhost.NeedRoot(t, "to be two users")
	w := newWorld(t, Rule{User: "1001"})
	c := w.client(t, 1001)
	box(t, c, "x")
	run := func(owner int) error {
		r, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer pipe.Close()
		if err := pipe.Chown(owner, owner); err != nil {
			t.Fatal(err)
		}
		p, err := c.Start(t.Context(), "x", spec.Command{Args: []string{"true"}}, [3]*os.File{1: pipe})
		if err != nil {
			return err
		}
		defer p.Close()
		return second(p.Wait(t.Context()))
	}
	if err := run(1001); err != nil {
		t.Errorf("one's own: %v", err)
	}
	for _, owner := range []int{0, 1002} {
		if err := run(owner); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("user %d's: %v", owner, err)
		}
	}
}
