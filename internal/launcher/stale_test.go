package launcher

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A handle that holds nothing any more finds a socket where it expects one, but
// of another sandbox, with other ids.
func TestHandleIsOfNoOtherSandboxOfItsName(t *testing.T) {
	l := newTestLauncher(t)
	first := createUp(t, l, "box", spec.Config{})
	first.session.Drop()
	other, err := New(Dirs{State: l.State, Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	upAgain(t, other, "box")
	p, err := first.Start(t.Context(), spec.Command{Args: []string{"true"}}, [3]*os.File{})
	if !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("%v, want %v", err, fault.ErrNotFound)
	}
	if err == nil {
		p.Close()
	}
}

// The time of a command can be over before PID 1 has had its first. The command has a Result even so.
func TestTimeoutHoldsBeforeTheStart(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	large := append([]string{"sh", "-c", "sleep 1000"}, largeCommand().Args...)
	for name, c := range map[string]spec.Command{
		"usual":           {Args: []string{"sleep", "1000"}},
		"large":           {Args: large},
		"with a terminal": {Args: []string{"sleep", "1000"}, Terminal: &spec.Winsize{}},
		"detached":        {Args: []string{"sleep", "1000"}, Detached: true},
	} {
		c.Timeout = spec.Duration(time.Nanosecond)
		for range 20 {
			p, err := sb.Start(t.Context(), c, [3]*os.File{})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r, err := p.Wait(t.Context())
			if err != nil || r.Status != spec.StatusTimedOut {
				t.Fatalf("%s: got %+v, %v", name, r, err)
			}
			if err := p.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
