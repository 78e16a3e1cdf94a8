package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// needDisk skips the test if a directory is on no block device, and returns the device.
func needDisk(t *testing.T, dir string) []spec.Disk {
	t.Helper()
	disks, err := part.DisksOf(Sources{}, dir)
	if err != nil || len(disks) == 0 {
		t.Skipf("%s is on no disk that can be throttled", filepath.Dir(dir))
	}
	return disks
}

// throttledBox is a tied sandbox with a slow disk.
func throttledBox(t *testing.T, l *Launcher) *Sandbox {
	t.Helper()
	dir := t.TempDir()
	needDisk(t, dir)
	c := spec.Config{Workspace: dir, Limits: spec.Limits{IOWrite: 64 << 10}}
	sb, err := l.Create(t.Context(), protocol.Create{Tied: true, Config: c}, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, sb)
	return sb
}

// checkThrottled wants the write limit of throttledBox.
func checkThrottled(t *testing.T, sb *Sandbox) {
	t.Helper()
	s, err := sb.Settings()
	if err != nil || !slices.ContainsFunc(s.IO, func(rule string) bool { return strings.Contains(rule, "65536") }) {
		t.Errorf("rules of disk traffic %q, %v", s.IO, err)
	}
}

// writeSlowly starts a write that waits for its turn for minutes.
func writeSlowly(t *testing.T, sb *Sandbox) *jobs.Process {
	t.Helper()
	p, err := sb.Start(t.Context(), spec.Command{Args: []string{"dd", "if=/dev/zero", "of=f", "bs=16M", "count=1", "oflag=direct"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	eventually(t, "it waits for the disk", func() bool {
		pids, err := p.Leaf.Pids()
		if err != nil || len(pids) == 0 {
			return false
		}
		fields, err := process.StatOf(pids[0])
		return err == nil && fields[0] == "D"
	})
	return p
}

func TestPauseOfAThrottledSandbox(t *testing.T) {
	l := newTestLauncher(t)
	sb := throttledBox(t, l)
	writeSlowly(t, sb)
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !sb.session.Paused() {
		t.Error("it is not paused")
	}
	checkThrottled(t, sb)
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkThrottled(t, sb)
}

func TestThrottlesHoldAfterAFailure(t *testing.T) {
	l := newTestLauncher(t)
	sb := throttledBox(t, l)
	failure := errors.New("it does not stand still")
	err := sb.session.Lift.Without(func() error {
		s, err := sb.Settings()
		if err != nil || len(s.IO) > 0 {
			t.Errorf("rules %q, %v", s.IO, err)
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	checkThrottled(t, sb)
	if err := sb.session.Group.LiftThrottles(); err != nil { // as a launcher that was killed
		t.Fatal(err)
	}
	elsewhere(t, sb)
	checkThrottled(t, sb)
}

// A process that holds the sandbox has lifted the limits itself. Whoever takes the sandbox
// over sets them once that process is done.
func TestThrottlesAreNotSetUnderTheWorkOfOthers(t *testing.T) {
	l := newTestLauncher(t)
	sb := throttledBox(t, l)
	state, err := statedir.Hold(l.Sandboxes(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.session.Group.LiftThrottles(); err != nil {
		t.Fatal(err)
	}
	other := elsewhere(t, sb)
	if s, err := sb.Settings(); err != nil || len(s.IO) > 0 {
		t.Errorf("rules %q, %v", s.IO, err)
	}
	state.Release()
	again, err := other.launcher.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	checkThrottled(t, sb)
}

func TestKillLeavesTheThrottlesOfOthers(t *testing.T) {
	l := newTestLauncher(t)
	sb := throttledBox(t, l)
	work := detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	again, err := sb.Attach(t.Context(), work.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	other, err := sb.Start(t.Context(), spec.Command{Args: []string{"sleep", "1000"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.Signal(unix.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	checkThrottled(t, sb)
	if _, err := other.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := work.Signal(unix.SIGKILL, true); err != nil { // alone
		t.Fatal(err)
	}
	checkThrottled(t, sb)
}

// The quick way of a removal ends a sandbox that waits for the disk.
func TestAThrottledSandboxIsEnded(t *testing.T) {
	l := newTestLauncher(t)
	sb := throttledBox(t, l)
	writeSlowly(t, sb)
	r := sb.session.Current()
	group, err := l.parts.Group(sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	_ = (&part.Remains{ID: sb.ID(), Group: group, Record: &r}).End() // a busy machine takes longer than End waits
	eventually(t, "PID 1 ends long before its write, which takes four minutes", func() bool { return !r.Init.Lives() })
}

func TestCloseEndsAWait(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	for _, detached := range []bool{false, true} {
		p, err := sb.Start(t.Context(), spec.Command{Args: []string{"sleep", "1000"}, Detached: detached}, [3]*os.File{})
		if err != nil {
			t.Fatal(err)
		}
		waited, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := p.Wait(t.Context())
			waited <- err
		}()
		eventually(t, "somebody waits", func() bool {
			free := p.Waiting.TryAcquire(1)
			if free {
				p.Waiting.Release(1)
			}
			return !free
		})
		go func() { closed <- p.Close() }()
		eventually(t, "both return", func() bool { return len(waited) == 1 && len(closed) == 1 })
		if err := <-waited; !errors.Is(err, os.ErrClosed) {
			t.Errorf("detached %v: wait: %v", detached, err)
		}
		if err := <-closed; err != nil {
			t.Errorf("detached %v: close: %v", detached, err)
		}
		if detached {
			if q, err := sb.Attach(t.Context(), p.ID()); err != nil {
				t.Errorf("attach afterwards: %v", err)
			} else {
				q.Close()
			}
		}
	}
}
