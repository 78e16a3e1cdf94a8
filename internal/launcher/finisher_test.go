package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/trash"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newFinisherLauncher is a launcher that finishes removals aside, and the errors of these.
func newFinisherLauncher(t *testing.T) (*Launcher, chan error) {
	t.Helper()
	l, failed := newTestLauncher(t), make(chan error, 100)
	l.FinishRemovalsAside(func(err error) { failed <- err })
	return l, failed
}

// What a removal promises holds at once, though the removal is not finished: see pauseRemovals.
func TestARemovalIsFinishedAside(t *testing.T) {
	testhost.Concurrent(t)
	l, _ := newFinisherLauncher(t)
	resume := pauseRemovals(t, l)
	sb := createUp(t, l, "box", inMemory("", spec.Config{}).Config)
	_ = detachedStart(t, sb, spec.Command{Args: []string{"sleep", "1000"}})
	init := sb.session.Init()
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if init.Lives() {
		t.Error("PID 1 lives")
	}
	if group, err := l.parts.Group("box"); err != nil {
		t.Error(err)
	} else if pids, err := group.Procs(); err != nil || len(pids) > 0 {
		t.Errorf("left in the cgroup: %d, %v", pids, err)
	}
	if i, err := l.Info(t.Context(), "box"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("info: %+v, %v", i, err)
	}
	if all, err := l.List(t.Context(), nil); err != nil || len(all) > 0 {
		t.Errorf("list: %+v, %v", all, err)
	}
	if _, err := l.Open(t.Context(), "box"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("open: %v", err)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || len(pruned) > 0 {
		t.Errorf("prune took %q out of the hands of a removal: %v", pruned, err)
	}
	// The next sandbox of the name waits for the old one.
	made := make(chan *Sandbox)
	go func() {
		defer close(made)
		again, err := l.Create(t.Context(), inMemory("box", spec.Config{}), Sources{})
		if err != nil {
			t.Error(err)
			return
		}
		made <- again
	}()
	select {
	case <-made:
		t.Error("a sandbox was made before the old one had gone")
	default:
	}
	resume()
	again := <-made
	if again == nil {
		return
	}
	if r, out := sh(t, again, "echo usable"); out.stdout != "usable\n" {
		t.Errorf("%q, %+v", out, r)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	l.Close() // waits for the removals
	checkNothingLeft(t, l)
}

// The mounts of a sandbox outlive its PID 1 until the removal is finished, so that nobody waits for their end. But
// the file systems of the caller's directories are free at once.
func TestAnUnfinishedRemovalHoldsTheMounts(t *testing.T) {
	l, _ := newFinisherLauncher(t)
	for _, workspace := range []string{"", t.TempDir()} {
		resume := pauseRemovals(t, l)
		var mounts string
		isAside := false
		for try := 0; try < 10 && !isAside; try++ { // on a busy machine a removal can be too slow to be left unfinished
			sb := createUp(t, l, "", inMemory("", spec.Config{Workspace: workspace}).Config)
			var err error
			mounts, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", sb.session.Init().Pid))
			if err := errors.Join(err, sb.Close()); err != nil {
				t.Fatal(err)
			}
			isAside = len(l.aside.waiting) > 0
		}
		if got, want := isOpen(t, mounts), workspace == ""; !isAside || got != want {
			t.Errorf("workspace %q: unfinished: %t; the mounts are held: %t, want %t", workspace, isAside, got, want)
		}
		resume()
		l.tending.Wait()
		if isOpen(t, mounts) {
			t.Errorf("workspace %q: the mounts are held after the removal", workspace)
		}
	}
}

// A removal holds no mounts of directories of the caller, and those of an image belong to the launcher.
func TestRemovalsHoldNoMountsOfTheCaller(t *testing.T) {
	l, _ := newFinisherLauncher(t)
	r := createUp(t, l, "", inMemory("", spec.Config{}).Config).session.Current()
	for _, hold := range []struct {
		config spec.Config
		want   int
	}{
		{spec.Config{}, 2}, {spec.Config{Image: "app"}, 2}, {spec.Config{Rootfs: "/srv"}, 0}, {spec.Config{Workspace: "/srv"}, 0},
		{spec.Config{Image: "app", Binds: []spec.Bind{{Source: "/srv"}}}, 0}, {spec.Config{Overlays: []string{"/srv"}}, 0},
	} {
		r.Config = hold.config
		held := (&removal{parts: &part.Remains{Record: &r}}).holdMounts()
		descriptor.Close(held...)
		if len(held) != hold.want {
			t.Errorf("%+v: %d mounts are held, want %d", hold.config, len(held), hold.want)
		}
	}
}

// isOpen says whether this process has an open file with the name, as /proc/self/fd shows it.
func isOpen(t *testing.T, name string) bool {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(open, func(e os.DirEntry) bool {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		return err == nil && target == name
	})
}

// pauseRemovals keeps removals from being finished, until resume is called.
func pauseRemovals(t *testing.T, l *Launcher) (resume func()) {
	t.Helper()
	for range mostAtATime {
		l.aside.finishing <- struct{}{}
	}
	resume = sync.OnceFunc(func() {
		for range mostAtATime {
			<-l.aside.finishing
		}
	})
	t.Cleanup(resume)
	return resume
}

// The end of a launcher waits for the files of a removal that is not finished.
func TestAnEndingLauncherRemovesFiles(t *testing.T) {
	l, _ := newFinisherLauncher(t)
	resume := pauseRemovals(t, l)
	if err := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk}).Close(); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, resume)
	l.Close()
	left, err := os.ReadDir(filepath.Join(l.Data, trash.TrashName))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the trash: %v, %v", left, err)
	}
	checkNothingLeft(t, l)
}

// Sandboxes are not made faster than they are removed.
func TestFewRemovalsAreUnfinished(t *testing.T) {
	l, _ := newFinisherLauncher(t)
	resume := pauseRemovals(t, l)
	most, last := 0, 4*mostAside
	for n := 0; n < last; n++ { // on a busy machine a removal can be too slow to be left unfinished
		if err := createUp(t, l, "", inMemory("", spec.Config{}).Config).Close(); err != nil {
			t.Fatal(err)
		}
		ids, err := l.parts.Directories()
		if err != nil {
			t.Fatal(err)
		}
		if most = max(most, len(ids)); most >= mostAside {
			last = min(last, n+8)
		}
	}
	if most != mostAside {
		t.Errorf("%d removals were unfinished, want %d", most, mostAside)
	}
	resume()
	l.Close()
	checkNothingLeft(t, l)
}

// A removal that cannot be finished is told and listed, and prune finishes it.
func TestAnUnfinishedRemovalIsTold(t *testing.T) {
	l, failed := newFinisherLauncher(t)
	sb := createUp(t, l, "box", inMemory("", spec.Config{}).Config)
	busy := l.Dir("box") + "/busy"
	if err := errors.Join(os.Mkdir(busy, 0o700), unix.Mount("tmpfs", busy, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	told := sb.Close()
	if told == nil { // else PID 1 needed so long that Close has finished the removal
		select {
		case told = <-failed:
		case <-time.After(10 * time.Second):
		}
	}
	if left, err := l.List(t.Context(), nil); err != nil || len(left) != 1 || left[0].State != spec.StateStopped {
		t.Errorf("list: %+v, %v", left, err)
	}
	if dir := l.Dir("box"); record.IsPending(dir) || !record.IsRest(dir) {
		t.Errorf("the rest: pending: %t", record.IsPending(dir))
	}
	if unmounted := unix.Unmount(busy, 0); unmounted != nil || !errors.Is(told, unix.EBUSY) {
		t.Errorf("told: %v, unmount: %v", told, unmounted)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || fmt.Sprint(pruned) != "[box]" {
		t.Errorf("prune: %q, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}

// A removal by root ends also root's level of the name, which an earlier sandbox of root's has left.
func TestAnUnfinishedRemovalEndsTheLevelOfRoot(t *testing.T) {
	l, _ := newFinisherLauncher(t)
	if _, err := l.Create(t.Context(), inMemory("box", spec.Config{Sensitivity: spec.SensitivitySecret}), Sources{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Abandon(t.Context(), "box", Condition{}); err != nil { // the level stays
		t.Fatal(err)
	}
	l.tending.Wait()
	if level, err := l.networks().Level("box", 0); err != nil || level != spec.SensitivitySecret {
		t.Fatalf("before: %q, %v", level, err)
	}
	if _, err := l.Create(t.Context(), inMemory("box", spec.Config{}), Sources{UID: 1001, GIDs: []uint32{1001}}); err != nil {
		t.Fatal(err)
	}
	pauseRemovals(t, l)
	if err := l.Remove(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if level, err := l.networks().Level("box", 0); err != nil || level.Above(spec.SensitivityPublic) {
		t.Errorf("after: %q, %v", level, err)
	}
}

// A paused sandbox has gone when its removal returns.
func TestASlowRemovalIsNotFinishedAside(t *testing.T) {
	l, _ := newFinisherLauncher(t)
	pauseRemovals(t, l)
	sb := createUp(t, l, "box", inMemory("", spec.Config{}).Config)
	if err := sb.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	checkNothingLeft(t, l)
}
