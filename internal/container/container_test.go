package container

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer/logs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func withUserNamespace(s *specs.Spec) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}}
	s.Linux.GIDMappings = s.Linux.UIDMappings
	s.Mounts = nil
	for _, m := range ExampleSpec(false).Mounts {
		if m.Type == "proc" || m.Destination == "/dev" {
			s.Mounts = append(s.Mounts, m)
		}
	}
}

// sealed returns the test program as a sealed memfd.
func sealed(t *testing.T) *os.File {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("init", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "init")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	return f
}

func socketpair(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(testhost.Patience.Seconds())}); err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func receive(t *testing.T, from *os.File) string {
	t.Helper()
	buf := make([]byte, 64)
	n, err := from.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func childrenLeft() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}

// As a sandbox's agent is started: from a descriptor, under a user namespace,
// with a socket and no stdio.
func TestRunFromADescriptorInAUserNamespace(t *testing.T) {
	p := newPlace(t)
	s := p.spec()
	s.Process.Args = []string{"/proc/self/fd/3", "serve"}
	s.Process.User.UID = 65535
	withUserNamespace(s)
	c := p.create(s)
	ours, theirs := socketpair(t)
	child, err := c.Run(Process{Spec: s.Process, ExtraFiles: []*os.File{sealed(t), theirs}})
	if err != nil {
		t.Fatal(err)
	}
	if got := receive(t, ours); got != "pid 1 uid 65535" {
		t.Errorf("inside: %q", got)
	}
	state, err := c.State()
	if err != nil || state.Status != Running || state.Pid != child.Pid() {
		t.Errorf("%+v, %v; pid %d", state, err, child.Pid())
	}
	pidfd, err := child.PidFD()
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if ended, err := process.AwaitExit(int(pidfd.Fd()), 10*time.Millisecond); ended || err != nil {
		t.Error("pidfd says ended", err)
	}
	if _, err := ours.Write([]byte{42}); err != nil {
		t.Fatal(err)
	}
	if ended, err := process.AwaitExit(int(pidfd.Fd()), testhost.Patience); !ended || err != nil {
		t.Error(ended, err)
	}
	ws, err := child.Wait()
	if err != nil || ws.ExitStatus() != 42 {
		t.Errorf("status %d, %v", ws.ExitStatus(), err)
	}
	if err := errors.Join(c.Destroy(), c.Destroy()); err != nil {
		t.Errorf("destroy, twice: %v", err)
	}
}

// As the launcher does it: the root filesystem is visible to one thread only.
func TestRunFromAThreadsOwnMountNamespace(t *testing.T) {
	p := newPlace(t)
	s := p.spec("exit", "5")
	hidden := filepath.Join(p.dir, "hidden")
	if err := os.Mkdir(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never back: the thread ends with the goroutine
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
				return err
			}
			if err := unix.Mount(s.Root.Path, hidden, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			s.Root.Path = hidden
			c, err := Create(p.root, p.id, s, Options{})
			if err != nil {
				return err
			}
			child, err := c.Run(Process{Spec: s.Process})
			if err != nil {
				return errors.Join(err, c.Destroy())
			}
			ws, err := child.Wait()
			if ws.ExitStatus() != 5 {
				err = errors.Join(err, fmt.Errorf("status %d", ws.ExitStatus()))
			}
			return errors.Join(err, c.Destroy())
		}()
	}()
	if err := <-result; err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(hidden); err != nil || len(entries) != 0 {
		t.Errorf("the host sees %v (%v)", entries, err)
	}
}

func TestStartHoldsInitUntilExec(t *testing.T) {
	p := newPlace(t)
	s := p.spec("exit", "3")
	c := p.create(s)
	child, err := c.Start(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := c.Status(); status != Created {
		t.Errorf("%s, %v", status, err)
	}
	loaded, err := Load(p.root, p.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Exec(); err != nil {
		t.Fatal(err)
	}
	if ws, err := child.Wait(); ws.ExitStatus() != 3 || err != nil {
		t.Errorf("status %d, %v", ws.ExitStatus(), err)
	}
	if status, err := loaded.Status(); status != Stopped {
		t.Errorf("%s, %v", status, err)
	}
	if _, err := loaded.PidFD(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("pidfd of a stopped container: %v", err)
	}
	if err := loaded.Signal(unix.SIGTERM); !errors.Is(err, ErrNotRunning) {
		t.Errorf("signal to a stopped container: %v", err)
	}
}

// Every start gets its own child's status: nobody waits for any child.
func TestRunsInParallelKeepTheirStatuses(t *testing.T) {
	var all sync.WaitGroup
	for status := range 6 {
		p := newPlace(t)
		s := p.spec("exit", strconv.Itoa(status))
		c := p.create(s)
		all.Go(func() {
			child, err := c.Run(Process{Spec: s.Process})
			if err != nil {
				t.Error(err)
				return
			}
			if ws, err := child.Wait(); ws.ExitStatus() != status || err != nil {
				t.Errorf("status %d, want %d (%v)", ws.ExitStatus(), status, err)
			}
		})
	}
	all.Wait()
}

func TestJoinRunsASecondProcess(t *testing.T) {
	p := newPlace(t)
	s := p.spec("pause")
	c := p.create(s)
	first, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	other := *s.Process
	other.Args = []string{"init", "exit", "9"}
	second, err := c.Join(Process{Spec: &other})
	if err != nil {
		t.Fatal(err)
	}
	if ws, err := second.Wait(); ws.ExitStatus() != 9 || err != nil {
		t.Errorf("status %d, %v", ws.ExitStatus(), err)
	}
	first.Abort()
}

func TestFailedRunLeavesNoProcess(t *testing.T) {
	p := newPlace(t)
	for _, edit := range []func(*specs.Spec){
		func(s *specs.Spec) { s.Process.Args[0] = "nosuch" },
		func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/bin/false"}}} },
	} {
		s := p.spec("pause")
		edit(s)
		c, err := Create(p.root, p.id, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Run(Process{Spec: s.Process}); err == nil {
			t.Error("it ran")
		}
		if childrenLeft() {
			t.Error("a child is left")
		}
		if err := c.Destroy(); err != nil {
			t.Error(err)
		}
	}
}

func TestKillEndsAFrozenContainer(t *testing.T) {
	p := newPlace(t)
	s := p.spec("pause")
	c := p.create(s)
	child, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	freeze(t, p.id)
	if status, err := c.Status(); status != Paused {
		t.Errorf("%s, %v", status, err)
	}
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
	if ws, err := child.Wait(); err != nil || ws.Signal() != unix.SIGKILL {
		t.Errorf("status %#x, %v", ws, err)
	}
	if err := c.Destroy(); err != nil {
		t.Error(err)
	}
}

// A container can end between the look at its state and the change of its limits.
func TestUpdateOfAnEndedContainerSaysSoOnce(t *testing.T) {
	p := newPlace(t)
	s := p.spec("pause")
	c := p.create(s)
	child, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	pids := int64(77)
	err = c.Update(&specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &pids}}, IntelRdt{})
	if !errors.Is(err, ErrNotRunning) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if err := c.Destroy(); err != nil {
		t.Error(err)
	}
}

// Who finds a container paused before its start asks again once it is resumed.
func TestStatusOfAResumedContainerThatWasNotStarted(t *testing.T) {
	p := newPlace(t)
	s := p.spec("exit", "0")
	c := p.create(s)
	if _, err := c.Start(Process{Spec: s.Process}); err != nil {
		t.Fatal(err)
	}
	freeze(t, p.id)
	loaded, err := Load(p.root, p.id)
	if err != nil {
		t.Fatal(err)
	}
	if status, err := loaded.Status(); status != Paused {
		t.Errorf("%s, %v", status, err)
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	if status, err := loaded.Status(); status != Created {
		t.Errorf("%s, %v", status, err)
	}
	if err := loaded.Pause(); err != nil {
		t.Errorf("paused again: %v", err)
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
}

// Who loaded a container that had stopped finds its successor paused.
func TestResumeOfAContainerThatWasReplaced(t *testing.T) {
	p := newPlace(t)
	s := p.spec("exit", "0")
	c := p.create(s)
	child, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(p.root, p.id)
	if err != nil {
		t.Fatal(err)
	}
	freeze(t, p.id)
	if err := loaded.Resume(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("resume: %v", err)
	}
}

// freeze freezes a group. An init that executes its program at that moment may
// have to be let go once: see settleFreezer.
func freeze(t *testing.T, group string) {
	t.Helper()
	v1, v2 := "/sys/fs/cgroup/freezer/"+group+"/freezer.state", "/sys/fs/cgroup/"+group+"/cgroup.freeze"
	if _, err := os.Stat(v1); err != nil {
		write(t, v2, "1")
		return
	}
	for range 1000 {
		write(t, v1, "FROZEN")
		if strings.TrimSpace(read(t, v1)) == "FROZEN" {
			return
		}
		write(t, v1, "THAWED")
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s does not freeze", group)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestBundleIsWhereRelativePathsStart(t *testing.T) {
	p := newPlace(t)
	t.Chdir(p.dir)
	s := p.spec("exit", "0")
	s.Root.Path = "rootfs"
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Source: "rootfs/bin", Options: []string{"bind", "ro"}})
	if err := os.Mkdir(filepath.Join(p.dir, "rootfs", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Annotations = map[string]string{"bundle": "/elsewhere"} // must not win
	c, err := Create(p.root, p.id, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	child, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(errors.Join(err, c.Destroy()))
	}
	if ws, err := child.Wait(); ws.ExitStatus() != 0 || err != nil {
		t.Errorf("status %d, %v", ws.ExitStatus(), err)
	}
	if c.Bundle() != p.dir {
		t.Errorf("bundle %s, want %s", c.Bundle(), p.dir)
	}
	if s.Root.Path != "rootfs" || s.Mounts[len(s.Mounts)-1].Source != "rootfs/bin" {
		t.Error("the caller's spec was changed")
	}
	if err := c.Destroy(); err != nil {
		t.Error(err)
	}
}

func TestNobodysIDIsRefused(t *testing.T) {
	for _, u := range []specs.User{{UID: math.MaxUint32}, {GID: math.MaxUint32}} {
		if _, err := newProcess(Process{Spec: &specs.Process{User: u}}); err == nil {
			t.Errorf("%+v was taken", u)
		}
	}
}

func TestRemoveRemainsTakesOnlyRemains(t *testing.T) {
	p := newPlace(t)
	c := p.create(p.spec("pause"))
	half := filepath.Join(p.root, "half")
	if err := os.Mkdir(half, 0o711); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"half", "never-there"} {
		if err := RemoveRemains(t.Context(), p.root, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s: %v", half, err)
	}
	others := filepath.Join(p.root, "theirs", "work")
	if err := os.MkdirAll(others, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := RemoveRemains(t.Context(), p.root, "theirs"); err == nil || !strings.Contains(err.Error(), "theirs holds work") {
		t.Errorf("what is no container's: %v", err)
	}
	if _, err := os.Stat(others); err != nil {
		t.Error(err)
	}
	if err := RemoveRemains(t.Context(), p.root, ".."); !errors.Is(err, ErrInvalidID) {
		t.Errorf("..: %v", err)
	}
	s := p.spec("pause")
	if _, err := c.Start(Process{Spec: s.Process}); err != nil {
		t.Fatal(err)
	}
	if err := RemoveRemains(t.Context(), p.root, p.id); !errors.Is(err, ErrExist) {
		t.Errorf("a whole container: %v", err)
	}
}

// A restore that is killed leaves a mount of the container's root in the state directory.
func TestRemoveRemainsKeepsTheRootOfAKilledRestore(t *testing.T) {
	p := newPlace(t)
	rootfs, half := t.TempDir(), filepath.Join(p.root, "half")
	at, file := filepath.Join(half, criuRoot), filepath.Join(rootfs, "file")
	if err := errors.Join(os.MkdirAll(at, 0o711), os.WriteFile(file, nil, 0o600), os.WriteFile(filepath.Join(half, "checkpoint"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := unix.Mount(rootfs, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	if err := RemoveRemains(t.Context(), p.root, "half"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s: %v", half, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the container's root: %v", err)
	}
}

func TestDiscardTakesOnlyAStateDirectory(t *testing.T) {
	p := newPlace(t)
	c := p.create(p.spec("pause"))
	if err := errors.Join(c.Destroy(), os.Mkdir(filepath.Join(p.root, p.id), 0o711)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state.json", cgroupsName} {
		if err := os.WriteFile(filepath.Join(p.root, p.id, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(DiscardIn(p.root, p.id, "/own"), DiscardIn(p.root, p.id, "/own")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(p.root, p.id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	others := filepath.Join(p.root, "theirs", "work")
	if err := os.MkdirAll(others, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := DiscardIn(p.root, "theirs", "/own"); err == nil || !strings.Contains(err.Error(), "theirs holds work") {
		t.Errorf("what is no container's: %v", err)
	}
	for _, id := range []string{"..", ".", "", "a/b"} {
		if err := DiscardIn(p.root, id, "/own"); !errors.Is(err, ErrInvalidID) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if _, err := os.Stat(others); err != nil {
		t.Error(err)
	}
}

func TestIDsLeavesOutWhatIsNoContainer(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"b", "a", "@sandboxes"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if ids, err := IDs(root); err != nil || strings.Join(ids, " ") != "a b" {
		t.Errorf("%q, %v", ids, err)
	}
	if _, err := IDs(filepath.Join(root, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing root: %v", err)
	}
}

func TestRootlessCgroupsFollowsTheChoice(t *testing.T) {
	for choice, want := range map[string]bool{"true": true, "1": true, "false": false} {
		if got, err := RootlessCgroups(choice, false); got != want || err != nil {
			t.Errorf("%s: %v, %v", choice, got, err)
		}
	}
	if _, err := RootlessCgroups("perhaps", false); err == nil {
		t.Error("perhaps was taken")
	}
}

func TestSetLogShowsTheInitsMessages(t *testing.T) {
	p := newPlace(t)
	var mu sync.Mutex
	var buf bytes.Buffer
	SetLog(slog.New(slog.NewTextHandler(&lockedWriter{&mu, &buf}, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer SetLog(slog.New(slog.DiscardHandler))
	s := p.spec("exit", "0")
	c := p.create(s)
	child, err := c.Run(Process{Spec: s.Process})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = child.Wait()
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"level=DEBUG", "nsexec", "child process in init()"} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("log lacks %q:\n%s", want, buf.String())
		}
	}
}

// TestManyContainersLogAtOnce fails if libcontainer copies the logger that others use: a copy of a locked logger
// stays locked.
func TestManyContainersLogAtOnce(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	SetLog(slog.New(slog.NewTextHandler(&lockedWriter{&mu, &buf}, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true})))
	defer SetLog(slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			logrus.Debug("here")
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			done := logs.ForwardLogs(r)
			if _, err := w.WriteString(`{"level":"debug","msg":"inside"}` + "\n"); err != nil {
				t.Error(err)
			}
			w.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("a container waits for its log")
	}
	mu.Lock()
	defer mu.Unlock()
	var here, inside int
	for line := range strings.Lines(buf.String()) {
		switch {
		case strings.Contains(line, "msg=here") && strings.Contains(line, "container_test.go:"):
			here++
		case strings.Contains(line, "msg=inside") && !strings.Contains(line, ".go:"):
			inside++
		}
	}
	if here != 100 || inside != 100 {
		t.Errorf("%d messages with their place and %d of an init without, want 100 each:\n%.1000s", here, inside, buf.String())
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// A damaged state names no cgroup that is there, and goes with its directory. Another
// container's stays.
func TestDiscardInTellsDamageFromOthers(t *testing.T) {
	root := t.TempDir()
	for state, goes := range map[string]bool{
		`"text"`: true, `["c"]`: true, `{"id":"c","config":{}}`: true, `{"memory":"/sys/fs/cgroup/memory/gone"}`: true,
		`{"memory":"/sys/fs/cgroup"}`: false,
	} {
		dir := filepath.Join(root, "c")
		if err := errors.Join(os.MkdirAll(dir, 0o711), os.WriteFile(filepath.Join(dir, cgroupsName), []byte(state), 0o600)); err != nil {
			t.Fatal(err)
		}
		err := DiscardIn(root, "c", "/own")
		if _, there := os.Lstat(dir); goes != (there != nil) || goes != (err == nil) || !goes && !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v, %v", state, err, there)
		}
	}
}
