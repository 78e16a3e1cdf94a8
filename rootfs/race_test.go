package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// swapper exchanges two paths until it is stopped.
type swapper struct {
	swaps atomic.Int64
	quit  chan struct{}
	done  chan error
}

func swap(t *testing.T, a, b string) *swapper {
	t.Helper()
	s := &swapper{quit: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		for {
			select {
			case <-s.quit:
				s.done <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				s.done <- err
				return
			}
			s.swaps.Add(1)
		}
	}()
	t.Cleanup(func() {
		close(s.quit)
		if err := <-s.done; err != nil {
			t.Errorf("swap: %v", err)
		}
	})
	return s
}

// during repeats f until enough swaps and calls have been made and, in not too many,
// all has been seen that there is to see: either may have stood still for the other's
// first.
func (s *swapper) during(t *testing.T, seen func() bool, f func()) {
	t.Helper()
	for calls := 0; calls < 300 || s.swaps.Load() < 10_000 || calls < 30_000 && !seen(); calls++ {
		if len(s.done) > 0 {
			t.Fatal("the swapper stopped")
		}
		f()
	}
}

// canary is a directory outside that must not be reached.
func canary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/canary", "alive")
	t.Cleanup(func() {
		if e := names(t, dir); len(e) != 1 {
			t.Errorf("the directory outside has %q", e)
		}
		if text, err := os.ReadFile(dir + "/canary"); string(text) != "alive" {
			t.Errorf("canary: %q, %v", text, err)
		}
	})
	return dir
}

func has(t *testing.T, fd int, name string) bool {
	t.Helper()
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.Errorf("look for %s: %v", name, err)
	}
	return err == nil
}

func TestSwappedWorkspaceIsNeverAnotherPlace(t *testing.T) {
	testhost.PrivateMounts(t)
	outside, dir := canary(t), t.TempDir()
	testhost.WriteFile(t, dir+"/roots/ws/good", "")
	testhost.Symlink(t, outside, dir+"/roots/link")
	s := swap(t, dir+"/roots/ws", dir+"/roots/link")
	c := testConfig()
	c.Workspace, c.WorkspaceRoots = dir+"/roots/ws", []string{dir + "/roots"}
	opened, refused := 0, 0
	s.during(t, func() bool { return opened > 0 && refused > 0 }, func() {
		r, err := Open(c)
		var forbidden *ForbiddenError
		if errors.As(err, &forbidden) {
			refused++
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		opened++
		tree := r.plan.root.children["workspace"].src.tree
		if has(t, tree, "canary") || !has(t, tree, "good") {
			t.Fatal("the workspace is another directory than was checked")
		}
		if err := unix.Mknodat(tree, "made", unix.S_IFREG|0o600, 0); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EOVERFLOW) {
			t.Fatal(err)
		}
	})
	if opened == 0 || refused == 0 {
		t.Errorf("opened %d times, refused %d times: the race was not run", opened, refused)
	}
}

// A place that a bind is to cover becomes a symbolic link to outside, between
// Open and Mount and during both.
func TestSwappedTargetIsNeverAnotherPlace(t *testing.T) {
	testhost.PrivateMounts(t)
	outside, dir := canary(t), t.TempDir()
	testhost.WriteFile(t, dir+"/root/usr/share/place/x", "")
	testhost.WriteFile(t, outside+"-place/x", "")
	t.Cleanup(func() { _ = os.RemoveAll(outside + "-place") })
	testhost.Symlink(t, outside, dir+"/root/usr/link")
	src := t.TempDir()
	testhost.WriteFile(t, src+"/bound", "")
	s := swap(t, dir+"/root/usr/share", dir+"/root/usr/link")
	c := testConfig()
	c.Dir = dir + "/root"
	c.Binds = []Bind{{Source: src, Target: "/usr/share/place"}, {Source: src, Target: "/usr/share/new/place"}}
	stages := stage(t)
	mountedOK, failed := 0, 0
	s.during(t, func() bool { return mountedOK > 0 }, func() {
		r, err := Open(c)
		if err != nil {
			failed++
			return
		}
		m, err := r.Mount(stages)
		if err != nil {
			failed++
			return
		}
		mountedOK++
		if _, err := os.Lstat(filepath.Join(outside, "bound")); err == nil {
			t.Fatal("mounted outside")
		}
		for _, leak := range []string{"/usr/share/canary", "/usr/link/canary"} {
			if fd, err := unix.Openat2(unix.AT_FDCWD, m.Path+leak, &unix.OpenHow{Flags: unix.O_PATH, Resolve: unix.RESOLVE_NO_SYMLINKS}); err == nil {
				unix.Close(fd)
				t.Fatalf("%s shows what is outside", leak)
			}
		}
		if err := unix.Unmount(stages, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("mounted %d times, failed %d times", mountedOK, failed)
	if mountedOK == 0 {
		t.Error("never mounted: the race was not run")
	}
}
