package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An endingContext has ended when somebody asks.
type endingContext struct{ context.Context }

func (endingContext) Err() error { return context.Canceled }

// lookAtSession has a line of each place that a claim of abortedClaims writes to.
const lookAtSession = "ls -A /workspace /srv 2>&1; echo colour: $COLOUR; ulimit -n; cat /proc/net/dev | wc -l"

// abortedClaims abort a claim early or late: with a broken blank, a port that is taken, or a client that has gone.
func abortedClaims(t *testing.T, l *Launcher, port int) map[string]func(c *spec.Config, blank string) context.Context {
	return map[string]func(c *spec.Config, blank string) context.Context{
		"broken": func(_ *spec.Config, blank string) context.Context {
			if err := os.RemoveAll(filepath.Join(l.State, blank)); err != nil {
				t.Fatal(err)
			}
			return t.Context()
		},
		"port": func(c *spec.Config, _ string) context.Context {
			c.Publish = []string{fmt.Sprintf("127.0.0.1:%d:80", port)}
			return t.Context()
		},
		"gone": func(*spec.Config, string) context.Context { return endingContext{t.Context()} },
	}
}

// The blank of an aborted claim is gone, and later sandboxes have nothing of the request. The blank gets the name
// of the request, or the sandbox gets that of the blank.
func TestNothingOfAnAbortedClaimIsInALaterSandbox(t *testing.T) {
	_, want := sh(t, createUp(t, newTestLauncher(t), "box", inMemory("", spec.Config{}).Config), lookAtSession)
	l := newPooledLauncher(t, 1)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, taken)
	for how, abort := range abortedClaims(t, l, taken.Addr().(*net.TCPAddr).Port) {
		for _, name := range []string{"box", ""} {
			t.Run(fmt.Sprintf("%s %q", how, name), func(t *testing.T) {
				checkAborted(t, l, name, how == "broken", abort) // another sandbox is made in place of a broken blank
				later := claimed1(t, l, inMemory("box", spec.Config{}))
				if _, got := sh(t, later, lookAtSession); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				if info, err := later.Info(); err != nil || info.Config.Sensitivity != spec.SensitivityPublic {
					t.Errorf("%+v, %v", info, err)
				}
				if err := later.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	l.StopPool()
	l.tending.Wait()
	checkNothingLeft(t, l)
}

// checkAborted aborts a claim.
func checkAborted(t *testing.T, l *Launcher, name string, made bool, abort func(c *spec.Config, blank string) context.Context) {
	t.Helper()
	dir := ownedDir(t, 1000, "given\n")
	testhost.WriteFile(t, filepath.Join(dir, "mine"), "")
	c := spec.Config{
		Workspace: dir, Binds: []spec.Bind{{Source: dir, Target: "/srv/data", Writable: true}}, Env: map[string]string{"COLOUR": "mine"},
		Network: spec.NetworkFull, Sensitivity: spec.SensitivityInternal, Limits: spec.Limits{NoFile: 77},
	}
	awaitBlanks(t, l, 1)
	blank := directoriesOf(t, l)[0]
	dressed := initOfBlank(t, l, blank)
	sb, err := l.Create(abort(&c, blank), inMemory(name, c), Sources{})
	if (err == nil) != made {
		t.Errorf("made: %v", err)
	}
	if err == nil {
		if _, got := sh(t, sb, lookAtSession); !strings.Contains(got.stdout, "mine") {
			t.Errorf("the sandbox has %q", got)
		}
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
	if unix.Kill(dressed, 0) == nil {
		t.Errorf("PID 1 %d of the blank lives", dressed)
	}
	if owners, err := l.ids.Owners(); err != nil || len(owners) > 1 { // at most of the next blank
		t.Errorf("owners of ids: %+v, %v", owners, err)
	}
}

// A claim that cannot be undone leaves what the next removal needs.
func TestDownFinishesTheCleanupOfAClaim(t *testing.T) {
	l := newPooledLauncher(t, 1)
	blank := filepath.Join(l.State, directoriesOf(t, l)[0])
	if err := unix.Mount("tmpfs", blank, "tmpfs", 0, "size=64k"); err != nil { // its rename and its removal fail
		t.Fatal(err)
	}
	sb, err := l.Create(t.Context(), inMemory("box", spec.Config{}), Sources{})
	if !errors.Is(err, unix.EBUSY) {
		t.Errorf("create: %v", err)
	}
	if err == nil {
		_ = sb.Close()
	}
	if err := unix.Unmount(blank, 0); err != nil {
		t.Error(err)
	}
	l.StopPool()
	l.tending.Wait()
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, l)
}
