package stamps

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// stamped has the stamps of the paths, for a root of this host.
func stamped(t *testing.T, host *HostMounts, paths ...string) *Stamps {
	t.Helper()
	var c Collector
	for _, path := range paths {
		c.Add(path)
	}
	s, err := c.Stamps(host)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// hostMounts are closed when the test ends.
func hostMounts(t *testing.T) *HostMounts {
	t.Helper()
	var h HostMounts
	t.Cleanup(h.Close)
	return &h
}

func checkChanged(t *testing.T, s *Stamps, want string) {
	t.Helper()
	if got, err := s.Changed(); got != want || err != nil {
		t.Errorf("changed: %q, %v; want %q", got, err, want)
	}
}

func TestStampsNoticeChanges(t *testing.T) {
	dir := t.TempDir()
	file, link, missing := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "missing")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host := hostMounts(t)
	renew := func() *Stamps {
		_ = os.Remove(missing) // missing it may be
		write(file)
		_ = os.Remove(link) // the same
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		return stamped(t, host, file, link, missing)
	}
	checkChanged(t, renew(), "")
	for want, change := range map[string]func(){
		missing: func() { write(missing) },
		file: func() { // as package managers replace a file
			write(file + ".new")
			if err := os.Rename(file+".new", file); err != nil {
				t.Fatal(err)
			}
		},
		link: func() {
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := renew()
		change()
		checkChanged(t, s, want)
	}
	s := renew()
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	checkChanged(t, s, file)
}

// A file system that somebody mounts over a part of the root is not in a root that was
// prepared before.
func TestStampsNoticeMounts(t *testing.T) {
	testhost.NeedRoot(t, "mounts")
	dir := t.TempDir()
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	s := stamped(t, hostMounts(t), dir)
	checkChanged(t, s, "")
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(below, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	failRead(t, s.host)
	checkChanged(t, s, "the mounts of the host")
	unmount()
	checkChanged(t, s, "")
}

// failRead makes a look at the mounts fail after the kernel has reported all changes.
func failRead(t *testing.T, h *HostMounts) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Close() // so poll(2) reports an event, and the file cannot seek
	if _, err := mountsChanged(int32(h.file.Fd())); err != nil {
		t.Error(err)
	}
	mounts := h.file
	h.file = r
	if _, err := h.current(); err == nil {
		t.Error("a pipe has mounts")
	}
	h.file = mounts
}

// Each blank of a pool has some 450 stamps.
func TestEqualStampsTakeTheMemoryOfOne(t *testing.T) {
	dir := t.TempDir()
	host := hostMounts(t)
	of := func(path string) *stamp {
		s := stamped(t, host, path)
		if s.files[0].path != path {
			t.Errorf("the stamps of %s are those of %s", path, s.files[0].path)
		}
		return &s.files[0]
	}
	first := of(dir)
	if of(dir) != first {
		t.Error("equal stamps take memory twice")
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if of(dir) == first {
		t.Error("stamps of two states are taken for equal")
	}
	of(t.TempDir())
}

func TestStampsThatOthersImplyAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/there/file", "")
	host := hostMounts(t)
	s := stamped(t, host, dir+"/none/deep/er", dir+"/there/none", dir+"/none/deep", dir+"/there", dir+"/none", dir+"/there", dir+"/there/file")
	var paths []string
	for _, f := range s.files {
		paths = append(paths, strings.TrimPrefix(f.path, dir))
	}
	if want := []string{"/none", "/there", "/there/file", "/there/none"}; !slices.Equal(paths, want) {
		t.Errorf("got the stamps of %q, want %q", paths, want)
	}
	checkChanged(t, s, "")
	if err := os.Mkdir(dir+"/none", 0o755); err != nil {
		t.Fatal(err)
	}
	checkChanged(t, s, dir+"/none")
	if err := os.Remove(dir + "/none"); err != nil {
		t.Fatal(err)
	}
	var c Collector
	c.Add(dir + "/none")
	testhost.WriteFile(t, dir+"/none", "")
	c.Add(dir + "/none")
	c.Add(dir + "/none/below")
	if some := fewest(c.files); len(some) != 3 {
		t.Errorf("of a file that came meanwhile: %v", some)
	}
}
