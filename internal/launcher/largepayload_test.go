package launcher

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// largeCommand has more arguments than fit in the socket of PID 1.
func largeCommand() spec.Command {
	args := []string{"true"}
	for range 20 {
		args = append(args, strings.Repeat("x", 100_000))
	}
	return spec.Command{Args: args}
}

// stopInit stops the PID 1 of a sandbox until the test ends.
func stopInit(t *testing.T, sb *Sandbox) {
	t.Helper()
	init := sb.session.Init().Pid
	if err := unix.Kill(init, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(init, unix.SIGCONT) })
}

func TestPauseDuringTheRequestOfALargeCommandIsTold(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Fatal(r)
	}
	stopInit(t, sb)
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	started := make(chan error, 1)
	go func() {
		c := largeCommand()
		c.Detached = true
		_, err := sb.Start(ctx, c, [3]*os.File{})
		started <- err
	}()
	eventually(t, "the request begins", func() bool { // after the first look for a pause
		entries, err := os.ReadDir(sb.session.ExecsDir())
		return err == nil && len(entries) > 0
	})
	if err := containerOf(t, sb).Pause(); err != nil {
		t.Fatal(err)
	}
	if err := <-started; !errors.Is(err, fault.ErrPaused) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(containerOf(t, sb).Resume(), unix.Kill(sb.session.Init().Pid, unix.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestTimeoutHoldsDuringTheRequestOfALargeCommand(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Fatal(r)
	}
	stopInit(t, sb)
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	c := largeCommand()
	c.Timeout = spec.Duration(100 * time.Millisecond)
	if _, err := sb.Start(ctx, c, [3]*os.File{}); !errors.Is(err, jobs.ErrLate) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
}

// PID 1 is asked for a detached command after the look for a pause.
func TestPauseDuringAnAttachIsTold(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	p := detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	stopInit(t, sb)
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	attached := make(chan error, 1)
	go func() {
		_, err := sb.Attach(ctx, p.ID())
		attached <- err
	}()
	eventually(t, "the question waits", func() bool { // it opens the files first
		return strings.Count(strings.Join(openFiles(t), "\n"), "/"+p.ID()+"/stdout") > 1
	})
	if err := containerOf(t, sb).Pause(); err != nil {
		t.Fatal(err)
	}
	if err := <-attached; !errors.Is(err, fault.ErrPaused) || ctx.Err() != nil {
		t.Errorf("got %v", err)
	}
	if err := containerOf(t, sb).Resume(); err != nil {
		t.Error(err)
	}
}
