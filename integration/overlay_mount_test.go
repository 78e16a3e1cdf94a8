package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mountUntilEnd mounts in the test's world until the test ends.
func mountUntilEnd(t *testing.T, source, dir, fsType string, flags uintptr, data string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, dir, fsType, flags, data); err != nil {
		t.Fatalf("mount %s on %s: %v", fsType, dir, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// TestOverlayTakesWhatIsMountedBelow with a layer for each, and a bind of the
// user's own in its place.
func TestOverlayTakesWhatIsMountedBelow(t *testing.T) {
	need(t, world())
	s := newSandboxes(t)
	dir, aside := ownedTree(t, 4242), ownedTree(t, 4242)
	for _, sub := range []string{"/sub", "/sub/deep", "/bound", "/sub/hidden/below"} {
		mountUntilEnd(t, "tmpfs", dir+sub, "tmpfs", 0, "mode=755")
		if err := os.WriteFile(dir+sub+"/there", []byte(sub+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mountUntilEnd(t, "tmpfs", dir+"/sub/hidden", "tmpfs", 0, "mode=755") // over the one below
	own(t, dir, 4242)
	before := stamped(t, dir)
	got := s.do("--overlay", dir, "--bind", aside+":"+dir+"/bound", "--cwd", dir, "--", "sh", "-c", `
cat sub/there sub/deep/there bound/file; ls -A sub/hidden
echo new > sub/there; echo new > sub/deep/there; echo new > sub/hidden/there; cat sub/there sub/deep/there sub/hidden/there; echo x > bound/x`)
	if want := "/sub\n/sub/deep\nold\nnew\nnew\nnew\n"; got.stdout != want || !strings.Contains(got.stderr, "Read-only") {
		t.Errorf("%+v, want %q", got, want)
	}
	if after := stamped(t, dir); after != before {
		t.Errorf("on the host before:\n%safter:\n%s", before, after)
	}
}

// TestOverlayRefusesWhatItCannotShow below a tree, by its name.
func TestOverlayRefusesWhatItCannotShow(t *testing.T) {
	need(t, world())
	for name, test := range map[string]struct {
		mount func(dir string)
		want  string
	}{
		"a file":    {func(dir string) { mountedFile(t, dir+"/file") }, "not a directory"},
		"processes": {func(dir string) { mountUntilEnd(t, "proc", dir+"/sub", "proc", 0, "") }, "proc file system"},
		"too many": {func(dir string) {
			for i := range 33 {
				mountUntilEnd(t, "tmpfs", fmt.Sprint(dir, "/sub/", i), "tmpfs", 0, "")
			}
		}, "33 file systems"},
	} {
		s := newSandboxes(t)
		dir := ownedTree(t, 4242)
		test.mount(dir)
		got := s.do("--overlay", dir, "--", "true")
		if got.code != 125 || !strings.Contains(got.stderr, test.want) || !strings.Contains(got.stderr, dir) {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
	}
}

func mountedFile(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestOverlayOfAnyFileSystem that can be read: one in memory, another overlay, one
// that is mounted read-only.
func TestOverlayOfAnyFileSystem(t *testing.T) {
	need(t, world())
	s := newSandboxes(t)
	base := ownedTree(t, 4242)
	dir := t.TempDir()
	mountUntilEnd(t, "tmpfs", dir+"/memory", "tmpfs", 0, "mode=755")
	mountUntilEnd(t, "tmpfs", dir+"/upper", "tmpfs", 0, "mode=755")
	for _, d := range []string{"/upper/data", "/upper/work"} {
		if err := os.Mkdir(dir+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mountUntilEnd(t, "overlay", dir+"/overlay", "overlay", 0, "lowerdir="+base+",upperdir="+dir+"/upper/data,workdir="+dir+"/upper/work")
	mountUntilEnd(t, base, dir+"/fixed", "", unix.MS_BIND, "")
	if err := unix.Mount("", dir+"/fixed", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"memory", "overlay", "fixed"} {
		at := filepath.Join(dir, name)
		if name != "fixed" {
			own(t, at, 4242)
		}
		before := stamped(t, at)
		got := s.do("--overlay", at, "--cwd", at, "--", "sh", "-c", "echo new > file; cat file; stat -c %U . file; rm -rf dir; ls")
		if !strings.HasPrefix(got.stdout, "new\nsandbox\nsandbox\nfile\n") || got.code != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if after := stamped(t, at); after != before {
			t.Errorf("%s, on the host before:\n%safter:\n%s", name, before, after)
		}
	}
	if err := os.Chown(dir+"/overlay", 0, 0); err != nil {
		t.Fatal(err)
	}
	if got := s.do("--overlay", dir+"/overlay", "--", "true"); got.code != 125 || !strings.Contains(got.stderr, "chown") {
		t.Errorf("of root, where owners cannot be changed: %+v", got)
	}
}
