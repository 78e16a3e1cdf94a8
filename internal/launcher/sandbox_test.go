package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/agent"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newTestLauncher has a state root of its own, in which nothing may be left.
func newTestLauncher(t *testing.T) *Launcher {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for mounts and cgroups")
	}
	l, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := l.Prune(context.Background()); err != nil {
			t.Errorf("prune: %v", err)
		}
	})
	return l
}

// checkNothingLeft looks at all that a sandbox of this root could leave.
func checkNothingLeft(t *testing.T, l *Launcher) {
	t.Helper()
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if known, err := l.known(host); err != nil || len(known) > 0 {
		t.Errorf("left: %v, %v", known, err)
	}
	entries, err := os.ReadDir(l.root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "@") {
			t.Errorf("left of libcontainer's state: %s", e.Name())
		}
	}
}

// runCommand runs one command with its output captured.
func runCommand(t *testing.T, l *Launcher, c spec.Config, args ...string) (spec.Result, error) {
	t.Helper()
	sb, err := l.Create(t.Context(), c, Caller{})
	if err != nil {
		return spec.Result{}, err
	}
	defer func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := sb.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
	}()
	p, err := sb.Start(t.Context(), Command{Args: args, Capture: true})
	if err != nil {
		return spec.Result{}, err
	}
	return p.Wait(t.Context())
}

func TestResultTellsWhatTheCommandDid(t *testing.T) {
	l := newTestLauncher(t)
	r, err := runCommand(t, l, spec.Config{Env: map[string]string{"GREETING": "hello"}},
		"sh", "-c", `echo $GREETING; echo oops >&2; exit 7`)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != spec.StatusExited || r.ExitCode != 7 || string(r.Stdout) != "hello\n" || string(r.Stderr) != "oops\n" {
		t.Errorf("got %+v", r)
	}
	if r.Duration <= 0 || r.CPU <= 0 || r.PeakMemory == 0 || r.Isolation != spec.IsolationFull || r.Limits.Memory != spec.Enforced {
		t.Errorf("accounting is missing in %+v", r)
	}
	checkNothingLeft(t, l)
}

func TestOutputBeyondTheLimitIsDroppedNotAwaited(t *testing.T) {
	l := newTestLauncher(t)
	r, err := runCommand(t, l, spec.Config{}, "head", "-c", fmt.Sprint(captureLimit+1), "/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Stdout) != captureLimit || !r.StdoutTruncated || r.StderrTruncated || r.ExitCode != 0 {
		t.Errorf("%d bytes, truncated %v, %v, exit %d", len(r.Stdout), r.StdoutTruncated, r.StderrTruncated, r.ExitCode)
	}
}

func TestTimeoutEndsTheWholeTree(t *testing.T) {
	l := newTestLauncher(t)
	r, err := runCommand(t, l, spec.Config{Timeout: spec.Duration(300 * time.Millisecond)},
		"sh", "-c", `echo before; (setsid sleep 1000 &); trap "" TERM INT; sleep 1000`)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != spec.StatusTimedOut || r.ExitCode != spec.ExitTimedOut || string(r.Stdout) != "before\n" {
		t.Errorf("got %+v", r)
	}
	checkNothingLeft(t, l)
}

func TestFileSizeLimitIsNamed(t *testing.T) {
	l := newTestLauncher(t)
	r, err := runCommand(t, l, spec.Config{Limits: spec.Limits{FileSize: 4096}}, "sh", "-c", "exec head -c 8192 /dev/zero > big")
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != spec.StatusLimit || !strings.Contains(r.Reason, "4k") {
		t.Errorf("got %+v", r)
	}
}

func TestWhatCannotBeExecutedIsToldApart(t *testing.T) {
	l := newTestLauncher(t)
	for name, code := range map[string]int{"no-such-command": 127, "/no/such/file": 127, "/etc/passwd": 126, "/usr": 126} {
		_, err := runCommand(t, l, spec.Config{}, name)
		var notRun *NotRunError
		if !errors.As(err, &notRun) || notRun.Code != code || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want code %d", name, err, code)
		}
	}
	checkNothingLeft(t, l)
}

// startSleep starts a command that does not end by itself.
func startSleep(t *testing.T, l *Launcher) (*Sandbox, *Process) {
	t.Helper()
	sb, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), Command{Args: []string{"sleep", "1000"}, Capture: true})
	if err != nil {
		t.Fatal(errors.Join(err, sb.Close()))
	}
	return sb, p
}

func TestCancelledContextEndsTheCommand(t *testing.T) {
	l := newTestLauncher(t)
	sb, p := startSleep(t, l)
	defer sb.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	r, err := p.Wait(ctx)
	if err != nil || r.Status != spec.StatusSignaled || r.ExitCode != 137 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestSandboxKilledFromOutsideIsLost(t *testing.T) {
	l := newTestLauncher(t)
	sb, p := startSleep(t, l)
	defer sb.Close()
	if err := sb.init.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Status != spec.StatusLost {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestSignalReachesTheCommand(t *testing.T) {
	l := newTestLauncher(t)
	sb, p := startSleep(t, l)
	defer sb.Close()
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Status != spec.StatusSignaled || r.Signal != "SIGINT" || r.ExitCode != 130 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestTerminalIsOneInside(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	input, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer typed.Close()
	var out strings.Builder
	p, err := sb.Start(t.Context(), Command{
		Args:     []string{"sh", "-c", "tty; stty size; read line; echo got $line; stty size"},
		Terminal: &agent.Winsize{Rows: 33, Columns: 99},
		Streams:  Streams{Stdin: input, Stdout: &out},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(agent.Winsize{Rows: 44, Columns: 55}); err != nil {
		t.Error(err)
	}
	if _, err := typed.WriteString("input\n"); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.ExitCode != 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for _, want := range []string{"/dev/pts/", "got input", "44 55"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %q", want, out.String())
		}
	}
}

func TestWorkspaceFilesBelongToItsOwner(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	if err := os.Chown(dir, 4321, 8765); err != nil {
		t.Fatal(err)
	}
	for _, user := range []spec.User{{UID: 1000, GID: 1000}, {UID: 0, GID: 0}, {UID: 77, GID: 88}} {
		r, err := runCommand(t, l, spec.Config{Workspace: dir, User: &user}, "sh", "-c", `mkdir -p d && echo x > d/$(id -u)`)
		if err != nil || r.ExitCode != 0 {
			t.Fatalf("user %v: %+v, %v", user, r, err)
		}
		info, err := os.Stat(filepath.Join(dir, "d", fmt.Sprint(user.UID)))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 4321 || st.Gid != 8765 {
			t.Errorf("user %v: file belongs to %d:%d", user, st.Uid, st.Gid)
		}
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	l := newTestLauncher(t)
	tests := map[string]struct {
		config spec.Config
		want   func(error) bool
	}{
		"bad limit":          {spec.Config{Limits: spec.Limits{Memory: 1}}, isA[*spec.FieldError]},
		"forbidden":          {spec.Config{Workspace: "/etc"}, isA[*rootfs.ForbiddenError]},
		"own state":          {spec.Config{Workspace: l.root}, isA[*rootfs.ForbiddenError]},
		"missing workspace":  {spec.Config{Workspace: "/no/such"}, isNotExist},
		"missing bind":       {spec.Config{Binds: []spec.Bind{{Source: "/no/such", Target: "/x"}}}, isNotExist},
		"missing rootfs":     {spec.Config{Rootfs: "/no/such"}, isNotExist},
		"unknown profile":    {spec.Config{Seccomp: "loose"}, isAny},
		"missing profile":    {spec.Config{Seccomp: "/no/such.json"}, isNotExist},
		"rootfs is a file":   {spec.Config{Rootfs: "/etc/passwd"}, isAny},
		"file on /proc":      {spec.Config{Binds: []spec.Bind{{Source: "/etc/passwd", Target: "/proc/x"}}}, isAny},
		"workspace a socket": {spec.Config{Workspace: "/dev/null"}, isAny},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			sb, err := l.Create(t.Context(), test.config, Caller{})
			if err == nil {
				sb.Close()
				t.Fatal("a sandbox was made")
			}
			if !test.want(err) {
				t.Errorf("error %v is not of the kind that was expected", err)
			}
			checkNothingLeft(t, l)
		})
	}
}

func isA[T error](err error) bool { var target T; return errors.As(err, &target) }
func isNotExist(err error) bool   { return errors.Is(err, fs.ErrNotExist) }
func isAny(error) bool            { return true }

func TestCancelledCreateLeavesNothing(t *testing.T) {
	l := newTestLauncher(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if sb, err := l.Create(ctx, spec.Config{}, Caller{}); err == nil {
		sb.Close()
		t.Error("a sandbox was made")
	}
	checkNothingLeft(t, l)
}

func TestSandboxesAtOnceDoNotMeet(t *testing.T) {
	l := newTestLauncher(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r, err := runCommand(t, l, spec.Config{}, "sh", "-c", fmt.Sprintf("echo %d > mine; sleep 0.1; cat mine; ls / /workspace /tmp | wc -l", i))
			if err != nil || !strings.HasPrefix(string(r.Stdout), fmt.Sprintln(i)) {
				t.Errorf("sandbox %d: %+v, %v", i, r, err)
			}
		})
	}
	all.Wait()
	checkNothingLeft(t, l)
}

func TestPruneSparesTheLivingAndRemovesTheDead(t *testing.T) {
	l := newTestLauncher(t)
	living, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	dead, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	// What is left when a process is killed: nobody holds the lock, and PID 1
	// has seen its socket close, or not yet.
	dead.state.held.Close()

	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{dead.id}) {
		t.Errorf("pruned %v, %v; want %s", pruned, err, dead.id)
	}
	dead.init.Wait()
	dead.agent.Close()
	p, err := living.Start(t.Context(), Command{Args: []string{"echo", "alive"}, Capture: true})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || string(r.Stdout) != "alive\n" {
		t.Errorf("the living sandbox: %+v, %v", r, err)
	}
	if err := living.Close(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t, l)
}

// A sandbox that ends by itself between being seen and being looked at was not
// removed by prune.
func TestPruneDoesNotClaimWhatEndedByItself(t *testing.T) {
	l := newTestLauncher(t)
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if removed, err := l.pruneOne(t.Context(), host, newID()); removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	checkNothingLeft(t, l)
}

// What could not be removed keeps its ids, and prune finds it.
func TestFailedCloseIsLeftToPrune(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := l.Create(t.Context(), spec.Config{}, Caller{})
	if err != nil {
		t.Fatal(err)
	}
	blocker := filepath.Join(l.root, sb.id, "notify") // a name that a container may have there
	if err := os.Mkdir(blocker, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", blocker, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	closeErr := sb.Close()
	if err := unix.Unmount(blocker, 0); err != nil {
		t.Fatal(err)
	}
	if closeErr == nil {
		t.Error("close: no error, though the state could not be removed")
	}
	owners, err := l.ids().owners()
	if err != nil || len(owners) != 1 || owners[0].id != sb.id {
		t.Errorf("owners of id ranges: %v, %v", owners, err)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || !slices.Equal(pruned, []string{sb.id}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}

func TestPruneFindsWhatHasNoDirectory(t *testing.T) {
	l := newTestLauncher(t)
	ranged := newID()
	if _, err := l.ids().claim(ranged); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.ids().draft("orphan-claim"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.EnsureParent(l.cgroupOf("orphan-group"), nil); err != nil {
		t.Fatal(err)
	}
	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{"orphan-claim", "orphan-group", ranged}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}
