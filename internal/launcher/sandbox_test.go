package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/jobs"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newTestLauncher has a state root of its own, in which nothing may be left.
func newTestLauncher(t *testing.T) *Launcher {
	t.Helper()
	return newTestLauncherIn(t, t.TempDir())
}

// newTestLauncherIn is newTestLauncher with a data directory.
func newTestLauncherIn(t *testing.T, data string) *Launcher {
	t.Helper()
	testhost.NeedRoot(t, "mounts and cgroups")
	l, err := New(Dirs{State: t.TempDir(), Data: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// All that there is a trace of: a test that fails leaves sandboxes up.
		ids, err := l.parts.KnownIDs()
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			if err := l.Remove(context.Background(), id); err != nil {
				t.Errorf("remove %s: %v", id, err)
			}
		}
		l.Close()
	})
	return l
}

// checkNothingLeft looks at all that a sandbox of this root could leave.
func checkNothingLeft(t *testing.T, l *Launcher) {
	t.Helper()
	if known, err := l.parts.KnownIDs(); err != nil || len(known) > 0 {
		t.Errorf("left: %v, %v", known, err)
	}
	entries, err := os.ReadDir(l.State)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "@") {
			t.Errorf("left of libcontainer's state: %s", e.Name())
		}
	}
}

// createTied makes a sandbox that is tied to this process.
func createTied(ctx context.Context, l *Launcher, c spec.Config) (*Sandbox, error) {
	return l.Create(ctx, protocol.Create{Config: c, Tied: true}, Sources{})
}

// runCommand runs one command with its output in the Result.
func runCommand(t *testing.T, l *Launcher, c spec.Config, args ...string) (spec.Result, error) {
	t.Helper()
	sb, err := createTied(t.Context(), l, c)
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
	p, printed, err := tryPiped(t, sb, spec.Command{Args: args})
	if err != nil {
		return spec.Result{}, err
	}
	defer p.Close()
	r, err := p.Wait(t.Context())
	out := printed()
	r.Stdout, r.Stderr = []byte(out.stdout), []byte(out.stderr)
	return r, err
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

func TestTimeoutEndsTheWholeTree(t *testing.T) {
	l := newTestLauncher(t)
	for timeout, on := 300*time.Millisecond, false; !on; timeout *= 4 { // which is too short for a slow host to get far
		r, err := runCommand(t, l, spec.Config{Timeout: spec.Duration(timeout)},
			"sh", "-c", `(setsid sleep 1000 &); trap "" TERM INT; echo before; sleep 1000`)
		if err != nil {
			t.Fatal(err)
		}
		on = string(r.Stdout) == "before\n"
		if r.Status != spec.StatusTimedOut || r.ExitCode != spec.ExitTimedOut || !on && timeout > time.Minute {
			t.Fatalf("got %+v", r)
		}
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
		var notRun *fault.NotRunError
		if !errors.As(err, &notRun) || notRun.Code != code || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want code %d", name, err, code)
		}
	}
	checkNothingLeft(t, l)
}

// startSleep starts a command that does not end by itself.
func startSleep(t *testing.T, l *Launcher) (*Sandbox, *jobs.Process) {
	t.Helper()
	sb, err := createTied(t.Context(), l, spec.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := sb.Start(t.Context(), spec.Command{Args: []string{"sleep", "1000"}}, [3]*os.File{})
	if err == nil {
		err = p.Started(t.Context())
	}
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
	if err != nil || r.Status != spec.StatusSignaled || r.ExitCode != 143 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestSandboxKilledFromOutsideIsLost(t *testing.T) {
	l := newTestLauncher(t)
	sb, p := startSleep(t, l)
	defer sb.Close()
	if err := unix.Kill(sb.session.Init().Pid, syscall.SIGKILL); err != nil {
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
	if err := p.Signal(syscall.SIGINT, false); err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || r.Status != spec.StatusSignaled || r.Signal != "SIGINT" || r.ExitCode != 130 {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestTerminalIsOneInside(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := createTied(t.Context(), l, spec.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	p, err := sb.Start(t.Context(), spec.Command{
		Args:     []string{"sh", "-c", "tty; stty size; read line; echo got $line"},
		Terminal: &spec.Winsize{Rows: 33, Columns: 99},
	}, [3]*os.File{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Started(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Terminal().WriteString("input\n"); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Terminal())
	if !errors.Is(err, unix.EIO) { // tty_io.c:tty_read(), of a terminal that nobody has any more
		t.Error(err)
	}
	if r, err := p.Wait(t.Context()); err != nil || r.ExitCode != 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
	for _, want := range []string{"/dev/pts/", "33 99", "got input"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in %q", want, out)
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
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		config spec.Config
		want   func(error) bool
	}{
		"bad limit":          {spec.Config{Limits: spec.Limits{Memory: 1}}, isA[*spec.FieldError]},
		"too many files":     {spec.Config{Limits: spec.Limits{NoFile: int64(min(own.Max, 1<<40)) + 1}}, isA[*spec.FieldError]},
		"forbidden":          {spec.Config{Workspace: "/etc"}, isA[*rootfs.ForbiddenError]},
		"own state":          {spec.Config{Workspace: l.State}, isA[*rootfs.ForbiddenError]},
		"own data":           {spec.Config{Workspace: l.Data}, isA[*rootfs.ForbiddenError]},
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
			sb, err := createTied(t.Context(), l, test.config)
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
	if sb, err := createTied(ctx, l, spec.Config{}); err == nil {
		sb.Close()
		t.Error("a sandbox was made")
	}
	checkNothingLeft(t, l)
}

func TestSandboxesAtOnceDoNotMeet(t *testing.T) {
	testhost.Concurrent(t)
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

// A sandbox that ends by itself between being seen and being looked at was not
// removed by prune.
func TestPruneDoesNotClaimWhatEndedByItself(t *testing.T) {
	l := newTestLauncher(t)
	if removed, err := l.pruneOne(t.Context(), newID()); removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	checkNothingLeft(t, l)
}

// What could not be removed keeps its ids, and prune finds it.
func TestFailedCloseIsLeftToPrune(t *testing.T) {
	l := newTestLauncher(t)
	sb, err := createTied(t.Context(), l, spec.Config{})
	if err != nil {
		t.Fatal(err)
	}
	container.PinCgroupfs() // not on the thread that ends
	testhost.PrivateMounts(t)
	blocker := filepath.Join(l.State, sb.ID(), "notify") // a name that a container may have there
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
	owners, err := l.ids.Owners()
	if err != nil || len(owners) != 1 || owners[0].Sandbox != sb.ID() {
		t.Errorf("owners of id ranges: %v, %v", owners, err)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || !slices.Equal(pruned, []string{sb.ID()}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}

func TestPruneFindsWhatHasNoDirectory(t *testing.T) {
	l := newTestLauncher(t)
	ranged := newID()
	if _, err := l.ids.Claim(ranged); err != nil {
		t.Fatal(err)
	}
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	former := record.Names{Cgroup: l.CgroupPrefix() + "former-group"} // as an earlier release names them
	for _, names := range []record.Names{former, l.NewNames("orphan-group")} {
		if _, err := host.EnsureParent(names.CgroupPath(), 0); err != nil {
			t.Fatal(err)
		}
	}
	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{"former-group", "orphan-group", ranged}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}

// A write that waits for its turn on a throttled disk cannot be killed.
func TestTimeoutEndsAThrottledCommand(t *testing.T) {
	l := newTestLauncher(t)
	dir := t.TempDir()
	if disks, err := part.DisksOf(Sources{}, dir); err != nil || len(disks) == 0 {
		t.Skipf("%s is on no disk that can be throttled", filepath.Dir(dir))
	}
	c := spec.Config{
		Workspace: dir,
		Limits:    spec.Limits{IOWrite: 64 << 10},
		Timeout:   spec.Duration(500 * time.Millisecond),
	}
	begin := time.Now()
	const own = 4 * time.Minute // would it take
	r, err := runCommand(t, l, c, "dd", "if=/dev/zero", "of=f", "bs=16M", "count=1", "oflag=direct")
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); r.Status != spec.StatusTimedOut || took > own/4 {
		t.Errorf("after %v: %+v", took, r)
	}
}

func TestPruneRemovesASandboxWithDamagedState(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	if err := os.Truncate(filepath.Join(l.State, sb.ID(), "state.json"), 0); err != nil {
		t.Fatal(err)
	}
	killInit(t, sb)
	pruned, err := l.Prune(t.Context())
	if err != nil || !slices.Equal(pruned, []string{sb.ID()}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}
