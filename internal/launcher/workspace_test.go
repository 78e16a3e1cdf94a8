package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ownedDir is a directory of some user's with one file in it.
func ownedDir(t testing.TB, uid int, content string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "given")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file} {
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// insideMounts counts the mounts at a path of the sandbox's.
func insideMounts(t *testing.T, sb *Sandbox, path string) (n int) {
	t.Helper()
	_, out := sh(t, sb, "cat /proc/self/mountinfo")
	for line := range strings.Lines(out.stdout) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			n++
		}
	}
	return n
}

func TestAWorkspaceIsGivenToASandboxThatIsUp(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "late", spec.Config{})
	before := insideMounts(t, sb, "/workspace")
	first, second := ownedDir(t, 4321, "first"), ownedDir(t, 5432, "second")
	for i, dir := range []string{first, second, first} {
		if err := sb.SetWorkspace(t.Context(), dir, Sources{}); err != nil {
			t.Fatal(err)
		}
		r, out := sh(t, sb, `cat given; echo new > made; stat -c %u given made`)
		if want := []string{"first", "second", "first"}[i] + "1000\n1000\n"; out.stdout != want {
			t.Errorf("in workspace %d: %q, %+v", i, out, r)
		}
		if r.Limits.Disk != spec.Unavailable {
			t.Errorf("the limit of disk space is %s in a directory of the host's without a quota", r.Limits.Disk)
		}
		st, err := os.Stat(filepath.Join(dir, "made"))
		if err != nil {
			t.Fatal(err)
		}
		if uid := st.Sys().(*syscall.Stat_t).Uid; uid != []uint32{4321, 5432, 4321}[i] {
			t.Errorf("what was made belongs to %d", uid)
		}
		if now := insideMounts(t, sb, "/workspace"); now > before+1 {
			t.Errorf("%d mounts at /workspace, where %d were before", now, before)
		}
	}
	if i, err := sb.Info(); err != nil || i.Config.Workspace != first {
		t.Errorf("the sandbox says its workspace is %s: %v", i.Config.Workspace, err)
	}
	// Another process's handle finds it so, too.
	if r, err := record.Read(l.Dir("late")); err != nil || r.Config.Workspace != first {
		t.Errorf("record: %+v, %v", r.Config, err)
	}
}

func TestAWorkspaceInUseIsNotReplaced(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "busy", spec.Config{})
	first, second := ownedDir(t, 1000, "first"), ownedDir(t, 1000, "second")
	if err := sb.SetWorkspace(t.Context(), first, Sources{}); err != nil {
		t.Fatal(err)
	}
	p, _ := startPiped(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	if err := sb.SetWorkspace(t.Context(), second, Sources{}); !errors.Is(err, fault.ErrBusy) {
		t.Errorf("with a command in it: %v", err)
	}
	if _, out := sh(t, sb, "cat given"); out.stdout != "first" {
		t.Errorf("after the refusal there is %q", out.stdout)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sb.SetWorkspace(t.Context(), second, Sources{}); err != nil {
		t.Errorf("without: %v", err)
	}
}

func TestWhatIsNoWorkspaceIsRefusedToALiveSandbox(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "late", spec.Config{})
	dir := t.TempDir()
	bound := createUp(t, l, "bound", spec.Config{Binds: []spec.Bind{{Source: dir, Target: "/workspace/x"}}})
	if err := bound.SetWorkspace(t.Context(), dir, Sources{}); !isA[*fault.ConfigError](err) || !strings.Contains(err.Error(), "/workspace/x") {
		t.Errorf("over a bind: %v", err)
	}
	foreign := ownedDir(t, 4321, "")
	held, err := os.Open(foreign)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, test := range map[string]struct {
		dir  string
		from Sources
		want func(error) bool
	}{
		"forbidden":      {"/etc", Sources{}, isA[*rootfs.ForbiddenError]},
		"the state":      {l.State, Sources{}, isA[*rootfs.ForbiddenError]},
		"missing":        {"/no/such", Sources{}, isNotExist},
		"a file":         {filepath.Join(foreign, "given"), Sources{}, isAny},
		"relative":       {"x", Sources{}, isAny},
		"another user's": {foreign, Sources{UID: 77, GIDs: []uint32{77}, Files: map[string]*os.File{foreign: held}}, isA[*rootfs.ForbiddenError]},
		"not opened":     {foreign, Sources{UID: 4321, GIDs: []uint32{4321}}, isAny},
	} {
		if err := sb.SetWorkspace(t.Context(), test.dir, test.from); err == nil || !test.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, out := sh(t, sb, "ls -A /workspace; touch /workspace/own && echo own"); out.stdout != "own\n" {
		t.Errorf("the private one is not what it was: %q", out)
	}
}

// The number of a PID 1 that has ended may be another's by now.
func TestMountsAreEnteredOfThatProcessOnly(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "late", spec.Config{})
	init := sb.session.Init()
	for name, change := range map[string]func(*process.ID){
		"another start":     func(i *process.ID) { i.Start += 2 },
		"another namespace": func(i *process.ID) { i.Namespace = "pid:[1]" },
		"nobody":            func(i *process.ID) { i.Pid = 1 << 22 },
	} {
		other := init
		change(&other)
		if thread, err := mountns.Enter(other); !errors.Is(err, fault.ErrNotRunning) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				thread.Stop()
			}
		}
	}
	thread, err := mountns.Enter(init)
	if err != nil {
		t.Fatal(err)
	}
	defer thread.Stop()
	var host, inside, now unix.Stat_t
	if err := errors.Join(unix.Stat("/", &host), thread.Do(func() error { return unix.Stat("/", &inside) }), unix.Stat("/", &now)); err != nil {
		t.Fatal(err)
	}
	if inside.Dev == host.Dev || now.Dev != host.Dev {
		t.Errorf("roots: %d of the host, %d of the thread, then %d of the host", host.Dev, inside.Dev, now.Dev)
	}
}

// The first of a sandbox, as one that is taken from a pool has it. Its state lies
// where it does on a host, in memory.
func BenchmarkSetWorkspace(b *testing.B) {
	testhost.NeedRoot(b, "mounts and cgroups")
	state, err := os.MkdirTemp("/run", "bench-workspace-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(state) })
	l, err := New(Dirs{State: state, Data: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	dir := ownedDir(b, 4321, "")
	for b.Loop() {
		b.StopTimer()
		sb, err := l.Create(b.Context(), protocol.Create{}, Sources{})
		if err != nil {
			b.Fatal(err)
		}
		time.Sleep(8 * time.Millisecond)
		b.StartTimer()
		err = sb.SetWorkspace(b.Context(), dir, Sources{})
		b.StopTimer()
		if err := errors.Join(err, sb.Close()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
