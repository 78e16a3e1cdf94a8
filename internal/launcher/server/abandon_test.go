package server

import (
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Nobody would know the id of a detached command whose client gives up the start.
func TestADetachedCommandEndsIfItsStartIsGivenUp(t *testing.T) {
	for what, start := range map[string]string{"during the start": "slow", "before the client knows": "hang"} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			c := w.client(t, 0)
			box(t, c, "box")
			p, err := c.Start(t.Context(), "box", spec.Command{Args: []string{start}, Detached: true}, [3]*os.File{})
			if err != nil {
				t.Fatal(err)
			}
			kept := func() *fakeProcess {
				b := w.core.box("box")
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.kept["e1"]
			}
			testhost.Eventually(t, "the launcher has started the command", func() bool { return kept() != nil })
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			testhost.Eventually(t, "the command is killed", func() bool {
				select {
				case <-kept().killed:
					return true
				default:
					return false
				}
			})
		})
	}
}

func TestADetachedCommandGoesOnIfItsStartIsKnown(t *testing.T) {
	w := newWorld(t)
	c := w.client(t, 0)
	box(t, c, "box")
	p, err := c.Start(t.Context(), "box", spec.Command{Args: []string{"hang"}, Detached: true}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	b := w.core.box("box")
	b.mu.Lock()
	kept := b.kept["e1"]
	b.mu.Unlock()
	testhost.Eventually(t, "the launcher gives up the command", func() bool {
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return kept.closed
	})
	select {
	case <-kept.killed:
		t.Error("the command was killed")
	default:
	}
}
