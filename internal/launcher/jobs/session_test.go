package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

func self() (process.ID, error) { return process.Of(os.Getpid()) }

// newTestSessions are the sessions of a launcher whose sandboxes are only files: this process is their PID 1, no agent
// answers, and no cgroup is there.
func newTestSessions(t *testing.T) *Sessions {
	t.Helper()
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{
		Roots: record.Roots{State: t.TempDir(), Data: t.TempDir()}, Self: self, Layers: &overlay.Keeper{}, Tending: &sync.WaitGroup{},
		OpenGroup: func(id string) (*cgroups.Group, error) {
			return host.Open(fmt.Sprintf("/sandbox-runtime/none-%d-%s", os.Getpid(), id))
		},
	})
	t.Cleanup(s.Close)
	return s
}

// newRecord makes a sandbox of files.
func newRecord(t *testing.T, s *Sessions, id string) record.Record {
	t.Helper()
	init, err := self()
	if err != nil {
		t.Fatal(err)
	}
	r := record.Record{Version: record.FormatVersion, Init: init}
	if err := errors.Join(os.MkdirAll(s.Dir(id), 0o700), r.Write(s.Dir(id))); err != nil {
		t.Fatal(err)
	}
	return r
}

// newTestSession is a session of a sandbox of files.
func newTestSession(t *testing.T) *Session {
	t.Helper()
	s := newTestSessions(t)
	newRecord(t, s, "box")
	v, err := s.Open("box")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Release)
	return v
}

// execNumbered is an exec of a process that has ended, by number.
func execNumbered(n int) ExecID { return ExecID{Pid: 1 << 22, Start: 1, N: uint32(n)} }

// keep makes the directory of a detached exec with this record.
func keep(t *testing.T, v *Session, e ExecID, r execRecord) *detachedExec {
	t.Helper()
	d := &detachedExec{Dir: v.execDir(e)}
	if err := errors.Join(d.makeDir(), d.open(os.O_RDWR|os.O_CREATE), d.close(), r.write(d.Dir)); err != nil {
		t.Fatal(err)
	}
	return d
}

func checkTimers(t *testing.T, v *Session, want int) {
	t.Helper()
	timers := &v.all.Deadlines
	timers.Mu.Lock()
	defer timers.Mu.Unlock()
	if len(timers.All) != want {
		t.Errorf("%d timers, want %d", len(timers.All), want)
	}
}

// A timer that fires at the moment of a Drop finds the session in use, and starts no timer again.
func TestIdleTimerThatFiresDuringADrop(t *testing.T) {
	v := &Session{all: &Sessions{}, Busy: 1}
	v.Drop()
	if v.idle != nil || v.Busy != 1 {
		t.Error("a dropped session has a timer")
	}
}

// All handles of a process share a session. The session ends with its last handle, or with the sandbox.
func TestHandlesShareASession(t *testing.T) {
	s := newTestSessions(t)
	if _, err := s.Open("box"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a sandbox: %v", err)
	}
	r := newRecord(t, s, "box")
	first, err := s.Open("box")
	if err != nil {
		t.Fatal(err)
	}
	r.Join = &record.Join{}
	if err := r.Write(s.Dir("box")); err != nil { // another process
		t.Fatal(err)
	}
	second, err := s.Open("box")
	if err != nil || second != first || first.Current().Join == nil {
		t.Errorf("the second handle has another session, or an old record: %v", err)
	}
	if now, err := s.Record("box"); err != nil || now.Join == nil {
		t.Errorf("the record is %+v, %v", now, err)
	}
	first.Release()
	first.Drop()
	if s.Len() != 1 {
		t.Error("a session with a handle is gone")
	}
	r.Init.Start += 2 // the next sandbox of the name, whose PID 1 has ended
	if err := r.Write(s.Dir("box")); err != nil {
		t.Fatal(err)
	}
	next, err := s.Open("box")
	if err != nil || next == first {
		t.Fatalf("the next sandbox has the session of the last one: %v", err)
	}
	second.Release()
	next.Release()
	if s.Len() != 0 {
		t.Errorf("%d sessions of a sandbox that has ended", s.Len())
	}
	newRecord(t, s, "other")
	other, err := s.OpenWritten("other", newRecord(t, s, "other"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	s.Forget("other")
	if s.Len() != 0 || other.idle != nil && other.idle.Stop() {
		t.Error("a session of a sandbox that is gone has a timer, or is known")
	}
}

func TestAttachRefusesWhatIsNoExec(t *testing.T) {
	v := newTestSession(t)
	keep(t, v, execNumbered(1), execRecord{Version: execVersion + 1})
	for id, want := range map[string]error{
		"": fault.ErrNotFound, "no-exec": fault.ErrNotFound, "../../x": fault.ErrNotFound, execNumbered(2).String(): fault.ErrNotFound,
		execNumbered(1).String(): statedir.ErrRelease,
	} {
		if _, err := v.Attach(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", id, err, want)
		}
	}
}

// The start of a command can be under way although the agent does not know the command.
func TestAStartUnderWayIsNotLost(t *testing.T) {
	v := newTestSession(t)
	own, err := v.all.newExec()
	if err != nil {
		t.Fatal(err)
	}
	v.starting.Store(own, nil)
	starting := v.startsUnderWay()
	v.starting.Delete(own)
	other := own
	other.N -= 1 << 20 // of another launcher in this process
	now, before := execRecord{Started: time.Now()}, execRecord{Started: time.Now().Add(-2 * settleTime)}
	for name, c := range map[string]struct {
		e        ExecID
		r        execRecord
		starting map[ExecID]bool
		want     bool
	}{
		"its own":                     {own, before, starting, true},
		"its own, started":            {own, now, nil, false},
		"of another":                  {other, now, nil, true},
		"of another, a while ago":     {other, before, nil, false},
		"of a process that has ended": {execNumbered(1), now, nil, false},
	} {
		if got := v.mayStart(c.e, c.r, c.starting); got != c.want {
			t.Errorf("%s: may start %t", name, got)
		}
	}
}

// A launcher that ends does not remove the state of commands that it cannot ask about.
func TestASweepWithoutAnAgentRemovesNothing(t *testing.T) {
	v := newTestSession(t)
	if err := v.Sweep(t.Context()); err != nil {
		t.Errorf("without commands: %v", err)
	}
	keep(t, v, execNumbered(1), execRecord{Version: execVersion, OutputLimit: MaxOutputBytes / 2})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.Sweep(ctx); err == nil {
		t.Error("an agent that does not answer is no error")
	}
	if err := v.roomForOutput(ctx, 1000); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("room: %v", err)
	}
	if !v.isDetached(execNumbered(1)) {
		t.Error("the command is forgotten")
	}
}
