package launcher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/agent"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An old handle is of the sandbox that it was opened for, also once it has to
// connect again and another sandbox has the name.
func TestAnOldHandleDoesNotReachTheNextOfItsName(t *testing.T) {
	l := newTestLauncher(t)
	old := createUp(t, l, "x", spec.Config{})
	other := elsewhere(t, old)
	if err := other.launcher.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	next := createUp(t, other.launcher, "x", spec.Config{})
	old.session.Drop() // as after some idle seconds
	p, err := old.Start(t.Context(), spec.Command{Args: []string{"sleep", "1000"}}, [3]*os.File{})
	if err == nil {
		p.Close()
	}
	if !errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrNotRunning) {
		t.Errorf("started there: %v", err)
	}
	if all, err := next.Execs(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("in the next one runs %v, %v", all, err)
	}
}

// An old handle does not lead to the files of the next sandbox with its name, which can be another user's.
func TestAnOldHandleHasNoLayersOfTheNextOfItsName(t *testing.T) {
	l := newTestLauncher(t)
	overlay := spec.Config{Overlays: []string{t.TempDir()}, Storage: spec.StorageDisk}
	old := createUp(t, l, "x", overlay)
	other := elsewhere(t, old)
	if err := other.launcher.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	next := createUp(t, other.launcher, "x", overlay)
	trees, err := old.Layers(t.Context(), false)
	if !errors.Is(err, fault.ErrNotFound) || len(trees) > 0 {
		t.Errorf("of the old handle: %d trees, %v", len(trees), err)
	}
	closeAllTrees(trees)
	if err := old.Verify(t.Context(), false); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("the files of the old handle: %v", err)
	}
	if trees, err = next.Layers(t.Context(), false); err != nil || len(trees) != 1 {
		t.Errorf("of the next one: %d trees, %v", len(trees), err)
	}
	closeAllTrees(trees)
}

// Who may remove a sandbox is asked once nobody else can change it.
func TestRemoveIfAsksAboutTheOwner(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "x", spec.Config{})
	asked := -1
	remove := func(may bool) {
		t.Helper()
		did, err := l.RemoveIf(t.Context(), "x", Condition{Owner: func(owner uint32) bool { asked = int(owner); return may }})
		if err != nil || did != may || asked != int(sb.Owner()) {
			t.Errorf("asked about %d: %t, %v", asked, did, err)
		}
	}
	remove(false)
	if _, err := l.Open(t.Context(), "x"); err != nil {
		t.Fatalf("another's: %v", err)
	}
	remove(true)
	if _, err := l.Open(t.Context(), "x"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("one's own: %v", err)
	}
}

// A removal of one sandbox leaves a later sandbox with the name alone.
func TestRemoveIfAsksAboutTheTime(t *testing.T) {
	l := newTestLauncher(t)
	created := func() time.Time {
		t.Helper()
		i, err := createUp(t, l, "x", spec.Config{}).Info()
		if err != nil {
			t.Fatal(err)
		}
		return i.Created
	}
	first := created()
	if did, err := l.RemoveIf(t.Context(), "x", Condition{Created: first}); !did || err != nil {
		t.Fatalf("the first: %t, %v", did, err)
	}
	second := created()
	if did, err := l.RemoveIf(t.Context(), "x", Condition{Created: first}); did || err != nil {
		t.Errorf("the first again: %t, %v", did, err)
	}
	if did, err := l.Abandon(t.Context(), "x", Condition{Created: first}); did || err != nil {
		t.Errorf("the first is abandoned: %t, %v", did, err)
	}
	if did, err := l.RemoveIf(t.Context(), "x", Condition{Created: second}); !did || err != nil {
		t.Errorf("the second: %t, %v", did, err)
	}
	if _, err := l.Open(t.Context(), "x"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("then: %v", err)
	}
}

// A detached command that is asked for while its sandbox is removed does not bring
// its directory back, which nobody would own and would keep the name.
func TestADetachedStartDoesNotBringARemovedSandboxBack(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "x", spec.Config{})
	conn, err := sb.session.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &jobs.Process{Live: sb.session, Conn: conn, Exec: jobs.ExecID{Pid: 1, Start: 1, N: 1}}
	if err := l.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := p.Detach(t.Context(), spec.Command{Args: []string{"true"}}, &agent.Command{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(l.Dir("x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is back: %v", err)
	}
}

// What runs as the same user can stop a child before it executes its command. The
// command's timeout holds then, too.
func TestATimeoutHoldsForACommandThatIsStoppedWhileItStarts(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "x", spec.Config{Limits: spec.Limits{CPUs: 2}})
	detachedStart(t, sb, spec.Command{Args: []string{"sh", "-c", "while :; do kill -STOP -1; done"}})
	late := false
	for end := time.Now().Add(30 * time.Second); !late && time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
		p, err := sb.Start(ctx, spec.Command{
			Args: []string{"true"}, Terminal: &spec.Winsize{}, Timeout: spec.Duration(100 * time.Millisecond),
		}, [3]*os.File{})
		cancel()
		late = errors.Is(err, jobs.ErrLate)
		if err != nil && !strings.HasPrefix(err.Error(), "sandbox x did not execute the command within its timeout") {
			t.Fatal(err)
		}
		if err == nil {
			p.Close()
		}
	}
	if !late {
		t.Error("no command was stopped in time")
	}
	if all, err := sb.Execs(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
