package layer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestMain holds that no test leaves a descriptor or a mount.
func TestMain(m *testing.M) {
	if dirs := os.Getenv(swapVariable); dirs != "" {
		swap(strings.Split(dirs, ":"))
		return
	}
	if dir := os.Getenv(monkeyVariable); dir != "" {
		writeOn(dir)
		return
	}
	os.Exit(testhost.RunMounting(m))
}

// overlay is a base with layers on it, the last of which is mounted. All lies on
// a tmpfs of the test's own.
type overlay struct {
	t                 testing.TB
	dir, base, merged string
	layers            int
	// renames: directories of the layers below can be renamed.
	renames bool
}

func newOverlay(t testing.TB) *overlay {
	t.Helper()
	testhost.PrivateMounts(t)
	dir, err := os.MkdirTemp("", "layer-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	o := &overlay{t: t, dir: dir, base: filepath.Join(dir, "base"), merged: filepath.Join(dir, "merged")}
	o.mkdir(o.base)
	o.mkdir(o.merged)
	return o
}

func (o *overlay) mkdir(dir string) {
	o.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		o.t.Fatal(err)
	}
}

func (o *overlay) layer(n int) string { return filepath.Join(o.dir, fmt.Sprint(n), "data") }

// push mounts another layer on top of what there is, in its place.
func (o *overlay) push() {
	o.t.Helper()
	o.freeze()
	lower := o.base
	for n := range o.layers {
		lower = o.layer(n) + ":" + lower
	}
	upper, work := o.layer(o.layers), filepath.Join(o.dir, fmt.Sprint(o.layers), "work")
	o.mkdir(upper)
	o.mkdir(work)
	o.layers++
	redirect := map[bool]string{false: "nofollow", true: "on"}[o.renames]
	options := "redirect_dir=" + redirect + ",metacopy=off,index=off,lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", o.merged, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		o.t.Fatalf("mount %s: %v", options, err)
	}
}

// freeze ends the writing to the uppermost layer.
func (o *overlay) freeze() {
	o.t.Helper()
	if o.layers == 0 {
		return
	}
	if err := unix.Unmount(o.merged, unix.MNT_DETACH); err != nil && err != unix.EINVAL {
		o.t.Fatal(err)
	}
}

// stack opens the layers as a launcher hands them out.
func (o *overlay) stack() *Stack {
	o.t.Helper()
	s := &Stack{Base: o.detached(o.base)}
	for n := o.layers - 1; n >= 0; n-- {
		s.Layers = append(s.Layers, Layer{Dir: o.detached(o.layer(n))})
	}
	return s
}

// detached is a mount that nobody can reach but by the descriptor.
func (o *overlay) detached(dir string) *os.File {
	o.t.Helper()
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		o.t.Fatalf("open_tree %s: %v", dir, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		o.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), dir)
	o.t.Cleanup(func() { f.Close() })
	return f
}
