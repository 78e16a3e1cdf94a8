package launcher

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// elsewhere is a handle of another launcher, as another process has it.
func elsewhere(t *testing.T, sb *Sandbox) *Sandbox {
	t.Helper()
	l, err := New(Dirs{State: sb.launcher.State, Data: sb.launcher.Data})
	if err != nil {
		t.Fatal(err)
	}
	again, err := l.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Release)
	return again
}

func detachedStart(t *testing.T, sb *Sandbox, c spec.Command) *jobs.Process {
	t.Helper()
	c.Detached = true
	p, err := sb.Start(t.Context(), c, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func readOutput(t *testing.T, p *jobs.Process) output {
	t.Helper()
	stdout, stderr := p.Output()
	var o output
	for _, f := range []struct {
		from streams.LogFile
		to   *string
	}{{stdout, &o.stdout}, {stderr, &o.stderr}} {
		var text strings.Builder
		if _, err := f.from.Copy(&text, 0, func(int64) error { return nil }); err != nil {
			t.Fatal(err)
		}
		*f.to = text.String()
	}
	return o
}

func TestDetachedExecOutlivesWhoStartedIt(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := detachedStart(t, sb, spec.Command{Args: []string{"sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo ended; echo oops >&2; exit 5"}})
	id := p.ID()
	stdout, stderr := p.Output()
	for _, f := range []streams.LogFile{stdout, stderr} {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
			t.Errorf("%s can be written: flags %#x, %v", f.Name(), flags, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	again := elsewhere(t, sb)
	execs, err := again.Execs(t.Context())
	if err != nil || len(execs) != 1 || execs[0].ID != id || !execs[0].Detached || execs[0].Ended || len(execs[0].Pids) == 0 || execs[0].Args[0] != "sh" {
		t.Fatalf("execs %+v, %v", execs, err)
	}
	if r, _ := sh(t, again, "touch go"); !r.OK() {
		t.Fatal(r)
	}
	eventually(t, "it ends", func() bool {
		execs, err := again.Execs(t.Context())
		return err == nil && len(execs) == 1 && execs[0].Ended
	})
	q, err := again.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	r, err := q.Wait(t.Context())
	if err != nil || r.Status != spec.StatusExited || r.ExitCode != 5 || r.Exec != id || r.CPU <= 0 || r.PeakMemory == 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if out := readOutput(t, q); out != (output{"begun\nended\n", "oops\n"}) {
		t.Errorf("output %q", out)
	}
	if _, err := again.Attach(t.Context(), id); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("attach, after it was asked for: %v", err)
	}
	if execs, err := again.Execs(t.Context()); err != nil || len(execs) != 0 {
		t.Errorf("execs %+v, %v", execs, err)
	}
	eventually(t, "its leaf is gone", func() bool {
		names, err := sb.session.Group.Leaves()
		return err == nil && !slices.Contains(names, "exec-"+id)
	})
}

func TestDetachedOutputIsKeptUpToABound(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := detachedStart(t, sb, spec.Command{Args: []string{"sh", "-c", "head -c 1m /dev/zero; echo done >&2"}, OutputLimit: 1000})
	r, err := p.Wait(t.Context())
	if err != nil || !r.OK() || !r.StdoutTruncated || r.StdoutOmitted != 1<<20-1000 || r.StderrTruncated || r.StderrOmitted != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	if out := readOutput(t, p); len(out.stdout) != 1000 || out.stderr != "done\n" {
		t.Errorf("%d bytes, and %q", len(out.stdout), out.stderr)
	}
}

// Whoever started it gave up, and the sandbox was dropped from memory; another
// process sees to it.
func TestTimeoutOfADetachedExecHoldsWhoeverIsThere(t *testing.T) {
	for name, gone := range map[string]bool{"its own": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			sb := createUp(t, l, "", spec.Config{})
			var p *jobs.Process
			for timeout := 500 * time.Millisecond; p == nil; timeout *= 4 { // in which a slow host may not even start it
				var err error
				p, err = sb.Start(t.Context(), spec.Command{
					Args: []string{"sh", "-c", "setsid sleep 1000"}, Detached: true, Timeout: spec.Duration(timeout),
				}, [3]*os.File{})
				if err != nil && (!errors.Is(err, jobs.ErrLate) || timeout > time.Minute) {
					t.Fatal(err)
				}
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if gone {
				sb.launcher.sessions.Deadlines.Stop(func(jobs.DeadlineKey) bool { return true })
			}
			again := elsewhere(t, sb)
			q, err := again.Attach(t.Context(), p.ID())
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			if r, err := q.Wait(t.Context()); err != nil || r.Status != spec.StatusTimedOut {
				t.Errorf("got %+v, %v", r, err)
			}
		})
	}
}

func TestCancelledWaitLeavesADetachedExec(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	if _, err := p.Wait(cancelled(t)); !errors.Is(err, errCancelled) {
		t.Errorf("wait: %v", err)
	}
	if err := p.Signal(unix.SIGTERM, true); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.Signal != "SIGTERM" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A leaf whose exec's process is dead is nobody's; a detached one's is.
func TestOpenClearsWhatTheDeadHaveLeft(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	kept := detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1001"}})
	dead := deadProcess(t)
	leaf, err := sb.session.Group.CreateLeaf(jobs.ExecID{Pid: uint32(dead.Pid), Start: dead.Start, N: 7}.Leaf(), leafOptions(sb))
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	victim := joinLeaf(t, leaf)
	again := elsewhere(t, sb)
	eventually(t, "what it left is dead", func() bool { return !victim.Lives() })
	names, err := again.session.Group.Leaves()
	if err != nil || slices.Contains(names, leaf.Name()) || !slices.Contains(names, kept.Exec.Leaf()) {
		t.Errorf("leaves %v, %v", names, err)
	}
	if _, out := sh(t, again, "ps ax -o args"); !strings.Contains(out.stdout, "sleep 1001") {
		t.Errorf("the detached one is dead:\n%s", out.stdout)
	}
}

// Whoever starts detached commands and never asks how they ended costs the host
// no more than the agent has places for, however short the time and however long
// the commands' arguments.
func TestDetachedExecsThatNobodyAsksForDoNotPileUp(t *testing.T) {
	testhost.Long(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "x", spec.Config{})
	args := append([]string{"true"}, slices.Repeat([]string{strings.Repeat("<", 100<<10)}, 4)...)
	const agentKeeps = 256
	for i := range agentKeeps + 3*jobs.SweepEvery {
		p := detachedStart(t, sb, spec.Command{Args: args})
		if i == 0 {
			record, err := os.Stat(p.Kept.Dir + "/" + jobs.ExecRecordName)
			if err != nil || record.Size() > 64<<10 {
				t.Errorf("the record of an exec: %v, %v", record, err)
			}
			args = args[:1]
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	all, err := sb.session.DetachedExecs()
	leaves, leavesErr := sb.session.Group.Leaves()
	if most := agentKeeps + jobs.SweepEvery + jobs.MaxEnded; err != nil || leavesErr != nil || len(all) > most || len(leaves) > most {
		t.Errorf("%d execs in %d leaves, want at most %d: %v, %v", len(all), len(leaves), most, err, leavesErr)
	}
}

// A command takes the time until its end, however late somebody asks for that.
func TestDurationOfADetachedCommandEndsWithIt(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	attach := func(t *testing.T, p *jobs.Process) *jobs.Process {
		again, err := elsewhere(t, sb).Attach(t.Context(), p.ID())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { again.Close() })
		return again
	}
	for name, taken := range map[string]func(t *testing.T, p *jobs.Process) *jobs.Process{
		"by who started it":     func(_ *testing.T, p *jobs.Process) *jobs.Process { return p },
		"by who attaches later": attach,
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			p := detachedStart(t, sb, spec.Command{Args: []string{"sleep", "0.05"}})
			if _, err := attach(t, p).Inside.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			time.Sleep(200 * time.Millisecond) // nobody asks
			r, err := taken(t, p).Wait(t.Context())
			if err != nil || !r.OK() || r.Duration < 45*time.Millisecond || r.Duration > took+100*time.Millisecond {
				t.Errorf("of at most %v: %v; %+v, %v", took, r.Duration, r, err)
			}
		})
	}
}

// A launcher asks PID 1 for the detached execs. PID 1 cannot answer if a pause begins after the
// check for a pause, or if the process is stopped.
func TestAnAgentThatDoesNotAnswerIsNamed(t *testing.T) {
	testhost.Long(t)
	l := newTestLauncher(t)
	sb := createUp(t, l, "x", spec.Config{})
	detachedStart(t, sb, spec.Command{Args: []string{"sleep", "60"}})
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.session.Sweep(t.Context()); !errors.Is(err, fault.ErrPaused) {
		t.Errorf("paused: %v", err)
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	init := sb.session.Init().Pid
	if err := unix.Kill(init, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(init, unix.SIGCONT) })
	if err := sb.session.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "remove the sandbox with down") {
		t.Errorf("stopped: %v", err)
	}
}

// Several clients wait for one detached command. Each gets the same Result, with the figures of the command's group.
func TestAllWaitersGetTheResultOfADetachedExec(t *testing.T) {
	testhost.Concurrent(t)
	for name, script := range map[string]string{
		"with output": "until [ -e go ]; do sleep 0.01; done; head -c 1m /dev/zero | tr '\\0' x; exit 5",
		"without":     "until [ -e go ]; do sleep 0.01; done; exit 5",
		"timed out":   "touch go; sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLauncher(t)
			sb := createUp(t, l, "", spec.Config{})
			command := spec.Command{Args: []string{"sh", "-c", script}, Detached: true}
			if name == "timed out" {
				command.Timeout = spec.Duration(3 * time.Second)
			}
			p := detachedStart(t, sb, command)
			clients := []*jobs.Process{p}
			for _, from := range []*Sandbox{sb, elsewhere(t, sb), elsewhere(t, sb)} {
				q, err := from.Attach(t.Context(), p.ID())
				if err != nil {
					t.Fatal(err)
				}
				defer q.Close()
				clients = append(clients, q)
			}
			results, errs := make([]spec.Result, len(clients)), make([]error, len(clients))
			var wait sync.WaitGroup
			for i, c := range clients[:len(clients)-1] {
				wait.Go(func() { results[i], errs[i] = c.Wait(t.Context()) })
			}
			if r, _ := sh(t, sb, "touch go"); !r.OK() {
				t.Fatal(r)
			}
			wait.Wait()
			late := len(clients) - 1 // asks when the others have the result
			results[late], errs[late] = clients[late].Wait(t.Context())
			for i, r := range results {
				if errs[i] != nil || !reflect.DeepEqual(r, results[0]) || r.PeakMemory == 0 || r.ExitCode == 0 {
					t.Errorf("%d: %+v, %v\nthe first: %+v", i, r, errs[i], results[0])
				}
			}
			if execs, err := sb.Execs(t.Context()); err != nil || len(execs) != 0 {
				t.Errorf("execs %+v, %v", execs, err)
			}
		})
	}
}
