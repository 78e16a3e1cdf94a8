package egress

import (
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A parent without its control socket could serve for ever: no client could dismiss its sandboxes. The next client
// starts another parent, which needs the ports.
func TestAParentWithoutItsSocketEnds(t *testing.T) {
	testhost.Long(t)
	newOutside(t)
	for _, lost := range []struct {
		name string
		path func(Egress) string
	}{
		{"the socket", Egress.socket},
		{"the directory", func(e Egress) string { return e.Dir }},
	} {
		e, s := newEgress(t), newSandbox(t)
		box := Box{Key: "box", Allow: []string{"good.example"}}
		if err := e.Admit(t.Context(), box, s.sockets); err != nil {
			t.Fatal(err)
		}
		all := append(parents(t, e), workers(t, e)...)
		if len(all) != 2 {
			t.Fatalf("%d processes", len(all))
		}
		if err := os.RemoveAll(lost.path(e)); err != nil {
			t.Fatal(err)
		}
		for _, id := range all {
			eventually(t, "the end of the processes without "+lost.name, func() bool { return !id.Lives() })
		}
		if err := s.fetch("good.example"); err == nil {
			t.Error("the sandbox is served without " + lost.name)
		}
		if err := e.Admit(t.Context(), box, s.sockets); err != nil {
			t.Fatal(err)
		}
		if err := s.fetch("good.example"); err != nil {
			t.Errorf("after another admission: %v", err)
		}
	}
}

// A parent of another socket ends, too: its clients reach the other parent.
func TestAParentWithAnotherSocketEnds(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	first := parents(t, e)[0]
	other, err := e.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	eventually(t, "the end of the first parent", func() bool { return !first.Lives() })
	if _, err := os.Lstat(e.socket()); err != nil {
		t.Errorf("the other socket: %v", err)
	}
}
