package launcher

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestAPausedSandboxStandsStillAndGoesOn(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > count; sleep 0.01; done"}})
	for range 2 { // the second finds it paused
		if err := sb.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if i, err := sb.Info(); err != nil || i.State != spec.StatePaused {
		t.Errorf("info %+v, %v", i, err)
	}
	before, err := sb.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Which nobody resumes meanwhile.
	if _, _, err := tryPiped(t, sb, spec.Command{Args: []string{"touch", "ran"}}); !errors.Is(err, fault.ErrPaused) {
		t.Errorf("start: %v", err)
	}
	if again := upAgain(t, l, "box"); again.session.Init() != sb.session.Init() {
		t.Error("up has replaced it")
	}
	if after, err := sb.Stats(t.Context()); err != nil || after.CPU != before.CPU || before.Pids < 2 {
		t.Errorf("it did not stand still: %+v, %+v, %v", before, after, err)
	}
	for range 2 {
		if err := sb.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if r, _ := sh(t, sb, "n=$(cat count); while [ $(cat count) = $n ]; do sleep 0.01; done; ! [ -e ran ]"); !r.OK() {
		t.Errorf("got %+v", r)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// containerOf is the container of a sandbox, which the launcher does not know to be changed.
func containerOf(t *testing.T, sb *Sandbox) *container.Container {
	t.Helper()
	c, err := sb.session.Container()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startPaused starts a command in a sandbox that is paused once the request is
// with the agent.
func startPaused(t *testing.T, sb *Sandbox, timeout time.Duration) *jobs.Process {
	t.Helper()
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Fatal(r)
	}
	if err := containerOf(t, sb).Pause(); err != nil {
		t.Fatal(err)
	}
	r := sb.session.Current()
	request, err := jobs.NewRequest(r, r.Config, spec.Command{Args: []string{"true"}}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := sb.session.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := sb.session.Leaves.Take()
	if err != nil {
		t.Fatal(err)
	}
	request.Cgroup.Dir, request.Cgroup.Tasks = leaf.Join()
	p := &jobs.Process{
		Live: sb.session, Exec: leaf.Exec, Leaf: leaf.Leaf, Args: []string{"true"}, Config: r, Conn: conn,
		StartedAt: time.Now(), Timeout: timeout,
	}
	if p.Inside, err = conn.Begin(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	sb.session.Enter()
	sb.session.Register(p)
	return p
}

func TestPauseWhileACommandIsStartedIsTold(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := startPaused(t, sb, 0)
	if err := p.Started(t.Context()); !errors.Is(err, fault.ErrPaused) {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(p.Close(), containerOf(t, sb).Resume()); err != nil {
		t.Error(err)
	}
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("afterwards: %+v", r)
	}
}

// The time of a command that was not started when its sandbox was paused goes by.
func TestTimeoutHoldsWhileACommandCannotBeStarted(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p := startPaused(t, sb, 50*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	r, err := p.Wait(ctx)
	if err != nil || r.Status != spec.StatusTimedOut || ctx.Err() != nil {
		t.Errorf("got %+v, %v", r, err)
	}
	if err := errors.Join(p.Close(), containerOf(t, sb).Resume()); err != nil {
		t.Error(err)
	}
	if r, _ := sh(t, sb, "true"); !r.OK() {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestTimeoutInAPausedSandboxDoesNotHang(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}, Timeout: spec.Duration(200 * time.Millisecond)})
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Status != spec.StatusTimedOut {
		t.Errorf("got %+v, %v", r, err)
	}
	// By the v1 freezer it is kept from dying.
	left, err := p.Leaf.Populated()
	if err != nil || left != strings.Contains(strings.Join(r.Notes, "\n"), "paused") {
		t.Errorf("left: %v, %v; notes %q", left, err, r.Notes)
	}
	if err := sb.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is dead", func() bool {
		_, out := sh(t, sb, "ps ax -o args")
		return !strings.Contains(out.stdout, "sleep 1000")
	})
}

func TestAPausedSandboxCanBeRemoved(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.Status != spec.StatusLost || !strings.Contains(r.Reason, "removed") {
		t.Errorf("got %+v, %v", r, err)
	}
	checkNothingLeft(t, l)
}

func TestUpdatedLimitsHoldAndStay(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{Limits: spec.Limits{Memory: 256 << 20, Pids: 64}})
	if r, _ := sh(t, sb, "true"); !r.OK() { // leaves a leaf made ahead, with the old limit
		t.Fatal(r)
	}
	if err := sb.Update(t.Context(), spec.Limits{Memory: 48 << 20, CPUs: 0.5, Pids: 20, FileSize: 4096}); err != nil {
		t.Fatal(err)
	}
	settings, err := sb.Settings()
	if err != nil || settings.Memory != 48<<20 || settings.MemoryAndSwap != 48<<20 || settings.CPUs != 0.5 || settings.Pids != 20+spec.AgentPids {
		t.Errorf("the kernel has %+v, %v", settings, err)
	}
	if r, _ := sh(t, sb, "exec head -c 64m /dev/zero | tail"); len(r.Violations) == 0 {
		t.Errorf("memory: %+v", r)
	}
	if r, _ := sh(t, sb, "for i in $(seq 30); do sleep 30 & done; wait"); len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Detail, "limit of 20 ") {
		t.Errorf("pids: %+v", r)
	}
	if r, _ := sh(t, sb, "exec head -c 8192 /dev/zero > big"); r.Status != spec.StatusLimit {
		t.Errorf("file size: %+v", r)
	}
	again := elsewhere(t, sb)
	if i, err := again.Info(); err != nil || i.Config.Limits.Memory != 48<<20 || i.Config.Limits.Pids != 20 || i.Config.Limits.CPUs != 0.5 {
		t.Errorf("info %+v, %v", i, err)
	}
	if err := again.Update(t.Context(), spec.Limits{Memory: 512 << 20, Pids: 100, FileSize: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	// The first launcher learns of it when it is asked for the sandbox again.
	fresh, err := l.Open(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Release()
	if r, _ := sh(t, fresh, "for i in $(seq 30); do sleep 0.1 & done; wait; head -c 8192 /dev/zero > big"); !r.OK() || len(r.Violations) > 0 {
		t.Errorf("raised: %+v", r)
	}
	var config *fault.ConfigError
	for _, limits := range []spec.Limits{{Memory: 1}, {Memory: spec.Unlimited}, {IORead: spec.Unlimited}} {
		if err := sb.Update(t.Context(), limits); !errors.As(err, &config) {
			t.Errorf("%+v: %v", limits, err)
		}
	}
	if err := again.Update(t.Context(), spec.Limits{FileSize: spec.Unlimited}); err != nil {
		t.Error(err)
	}
}

func TestLimitsOfOneCommand(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	run := func(limits spec.Limits, line string) spec.Result {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", line}, Limits: limits})
		r, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(spec.Limits{Memory: 32 << 20}, "head -c 64m /dev/zero | tail"); len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Detail, "memory limit of 32m") {
		t.Errorf("memory: %+v", r)
	}
	if r := run(spec.Limits{Pids: 16}, "for i in $(seq 30); do sleep 30 & done; wait"); len(r.Violations) != 1 || !strings.Contains(r.Violations[0].Detail, "limit of 16 ") {
		t.Errorf("pids: %+v", r)
	}
	if r := run(spec.Limits{FileSize: 4096}, "exec head -c 8192 /dev/zero > big"); r.Status != spec.StatusLimit || !strings.Contains(r.Reason, "4k") {
		t.Errorf("file size: %+v", r)
	}
	const spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
	slow, fast := run(spec.Limits{CPUs: 0.1}, spin), run(spec.Limits{}, spin)
	if slow.Duration < 4*slow.CPU || fast.Status != spec.StatusExited {
		t.Errorf("cpu: %v in %v; %v in %v", slow.CPU, slow.Duration, fast.CPU, fast.Duration)
	}
	if r := run(spec.Limits{}, "head -c 64m /dev/zero | tail >/dev/null"); !r.OK() || len(r.Violations) > 0 {
		t.Errorf("the next has them, too: %+v", r)
	}
}

// The limit of the sandbox can be met below that of the command.
func TestAnOOMKillNamesTheLimitThatWasMet(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{Limits: spec.Limits{Memory: 96 << 20}})
	if r, _ := sh(t, sb, "head -c 60m /dev/zero > /dev/shm/x"); !r.OK() {
		t.Fatal(r)
	}
	for most, says := range map[spec.Size]string{88 << 20: "at 96m", 16 << 20: "at 16m"} {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "exec head -c 80m /dev/zero | tail"}, Limits: spec.Limits{Memory: most}})
		if r, err := p.Wait(t.Context()); err != nil || !strings.Contains(r.Reason, says) {
			t.Errorf("a command with %s: %v, %+v", most, err, r)
		}
	}
}

func TestUpdateThatCannotBeKeptLeavesTheOldLimits(t *testing.T) {
	l := newTestLauncher(t)
	if err := unix.Mount("tmpfs", l.State, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := l.Remove(context.Background(), "box")
		if err := errors.Join(err, unix.Unmount(l.State, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	sb := createUp(t, l, "box", spec.Config{Limits: spec.Limits{Memory: 64 << 20}})
	full := filepath.Join(l.State, "full")
	if err := os.WriteFile(full, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	err := sb.Update(t.Context(), spec.Limits{Memory: 128 << 20, Pids: 30})
	settings, readErr := sb.Settings()
	if !errors.Is(err, unix.ENOSPC) || readErr != nil || settings.Memory != 64<<20 || settings.MemoryAndSwap != 64<<20 || settings.Pids == 30+spec.AgentPids {
		t.Errorf("%v; the kernel has %+v, %v", err, settings, readErr)
	}
}

func TestRemoveAtOnceRemovesOnce(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	createUp(t, l, "box", spec.Config{})
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if err := l.Remove(t.Context(), "box"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	checkNothingLeft(t, l)
}

// Whoever asked for it has gone; what was begun is finished.
func TestRemoveOutlivesItsCaller(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "box", spec.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	state, err := l.holdID(ctx, "box")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := l.removeHeld(ctx, "box", state); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, l)
}

func TestWhoIsBusyIsWaitedFor(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "box", spec.Config{})
	state, err := statedir.Hold(l.Sandboxes(), "box")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Remove(ctx, "box"); !errors.Is(err, fault.ErrBusy) {
		t.Errorf("remove: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { state.Release() })
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, l)
}

func TestSignalReachesTheTree(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c",
		`trap ": > main" USR1; setsid sh -c 'trap "echo daemon > said" USR1; : > ready; while :; do sleep 0.01; done' & while [ ! -e end ]; do sleep 0.01; done`}})
	has := func(file string) func() bool {
		return func() bool {
			r, _ := sh(t, sb, "[ -e "+file+" ]")
			return r.OK()
		}
	}
	eventually(t, "they are ready", has("ready"))
	if err := p.Signal(unix.SIGUSR1, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its group has heard", has("main"))
	if has("said")() {
		t.Error("another session has heard what was for the command's group")
	}
	if err := p.Signal(unix.SIGUSR1, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tree has heard", has("said"))
	if err := p.Signal(unix.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.Signal != "SIGKILL" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Before what a command has started is killed none of it may fork any more: the
// command is killed before that, or it would end of it.
func TestAForkingCommandIsKilled(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	for n := range 100 {
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "while :; do (:); done"}})
		time.Sleep(time.Duration(n) * 50 * time.Microsecond)
		if err := p.Signal(unix.SIGKILL, true); err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(t.Context()); err != nil || r.Signal != "SIGKILL" {
			t.Fatalf("got %+v, %v", r, err)
		}
	}
}

// What is read by the name of a sandbox is not another's that has the name since.
func TestWhatIsReadOfASandboxIsItsOwn(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	var pids int64
	err := sb.observe(t.Context(), func() error {
		if err := l.Remove(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		createUp(t, l, "box", spec.Config{})
		stats, err := sb.session.Group.Stats()
		pids = stats.Pids
		return err
	})
	if !errors.Is(err, fault.ErrNotFound) || pids > 0 {
		t.Errorf("%d processes of another's, %v", pids, err)
	}
}

// A sandbox that is being changed stays the one that it was.
func TestNobodyRemovesASandboxThatIsBeingChanged(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "box", spec.Config{})
	if err := sb.change(t.Context(), func(*container.Container) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := l.Remove(ctx, "box"); !errors.Is(err, fault.ErrBusy) {
			t.Errorf("remove: %v", err)
		}
		if !sb.session.Up() || !sb.session.Present() {
			t.Error("it is gone")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A command whose sandbox is gone ends without a change to another of its name.
func TestAnEndingCommandLeavesTheLimitsOfOthers(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	if disks, err := part.DisksOf(Sources{}, dir); err != nil || len(disks) == 0 {
		t.Skipf("%s is on no disk that can be throttled", dir)
	}
	create := protocol.Create{Name: "box", Tied: true, Config: spec.Config{Workspace: dir, Limits: spec.Limits{IOWrite: 1 << 20}}}
	made := func() *Sandbox {
		sb, err := l.Create(t.Context(), create, Sources{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sb.Release)
		return sb
	}
	p, _ := startPiped(t, made(), spec.Command{Args: []string{"sleep", "1000"}})
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	other := made()
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if s, err := other.Settings(); err != nil || len(s.IO) == 0 {
		t.Errorf("the other one's limits: %+v, %v", s, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
