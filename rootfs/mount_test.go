package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestHostRootRunsPrograms(t *testing.T) {
	testhost.PrivateMounts(t)
	r, m := mounted(t, testConfig())
	for line, want := range map[string]string{
		"id -un; id -gn":                       "sandbox\nsandbox",
		"cat /etc/hostname":                    "box",
		"ls -A /home /tmp /run | tr '\\n' ' '": "/home: sandbox  /run:  /tmp:",
	} {
		if got := inside(t, r, m.Path, 1000, line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	for _, gone := range []string{"/root", "/boot", "/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/var/lib/dpkg", "/opt", "/srv"} {
		if _, err := os.Lstat(m.Path + gone); err == nil {
			t.Errorf("%s is visible", gone)
		}
	}
	if len(r.Notes()) > 0 {
		t.Errorf("notes for the host's own root: %q", r.Notes())
	}
}

func TestSkeletonBelongsToTheSandboxRoot(t *testing.T) {
	testhost.PrivateMounts(t)
	_, m := mounted(t, testConfig())
	for _, p := range []string{"", "/etc", "/etc/passwd", "/etc/mtab", "/proc", "/tmp", "/home/sandbox"} {
		if got := ownerOf(t, m.Path+p); got != own(testBase, testBase) {
			t.Errorf("%q belongs to %v", p, got)
		}
	}
	st, err := os.Stat(m.Path)
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("mode of the root: %v, %v", st.Mode(), err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(m.Path, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC || fs.Blocks*uint64(fs.Bsize) != 8<<20 {
		t.Errorf("the skeleton is no tmpfs of 8 MiB: type %x, %d blocks", fs.Type, fs.Blocks)
	}
}

// The umask of the caller does not decide on modes.
func TestModesIgnoreUmask(t *testing.T) {
	testhost.PrivateMounts(t)
	old := unix.Umask(0o777) // of the thread: private shares no fs attributes
	_, m := mounted(t, testConfig())
	unix.Umask(old)
	for p, want := range map[string]os.FileMode{"/etc": 0o755, "/etc/passwd": 0o644, "/tmp": 0o755} {
		if st, err := os.Stat(m.Path + p); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, st.Mode(), err)
		}
	}
}

// mountFlags are statfs flags of a path.
func mountFlags(t *testing.T, path string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatalf("statfs %s: %v", path, err)
	}
	return int64(fs.Flags) //nolint:unconvert // int32 on some architectures
}

func TestTreesAreReadOnlyNosuidNodev(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	src, ws := filepath.Join(dir, "src"), filepath.Join(dir, "ws")
	testhost.WriteFile(t, src+"/sub/file", "")
	testhost.WriteFile(t, ws+"/sub/file", "")
	mountAt(t, "tmpfs", src+"/sub", "mode=0777")
	bindAt(t, ws+"/sub") // no tmpfs, which cannot be idmapped before Linux 6.3
	cfg := testConfig()
	cfg.Binds = []Bind{{Source: src, Target: "/data"}}
	cfg.Workspace = ws
	_, m := mounted(t, cfg)
	const common = unix.ST_NOSUID | unix.ST_NODEV
	for p, want := range map[string]int64{
		"/usr": common | unix.ST_RDONLY, "/etc/alternatives": common | unix.ST_RDONLY,
		"/data": common | unix.ST_RDONLY, "/data/sub": common | unix.ST_RDONLY,
		"/workspace": common, "/workspace/sub": common, "/": common,
	} {
		if got := mountFlags(t, m.Path+p) & (common | unix.ST_RDONLY); got != want {
			t.Errorf("%s: flags %#x, want %#x", p, got, want)
		}
	}
	if err := os.WriteFile(m.Path+"/data/sub/new", nil, 0o600); err == nil {
		t.Error("a mount below a read-only bind can be written to")
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, m.Path) && (strings.Contains(line, "shared:") || strings.Contains(line, "master:")) {
			t.Errorf("not private: %s", line)
		}
	}
}

func TestMountFailureLeavesNothing(t *testing.T) {
	testhost.PrivateMounts(t)
	src := t.TempDir()
	testhost.WriteFile(t, src+"/a/b/file", "")
	cfg := testConfig()
	cfg.Binds = []Bind{{Source: src, Target: "/data"}, {Source: t.TempDir(), Target: "/data/a/b"}}
	r := open(t, cfg)
	if err := os.Rename(src+"/a/b", src+"/a/c"); err != nil {
		t.Fatal(err)
	}
	testhost.Symlink(t, "/etc", src+"/a/b")
	before, _ := os.ReadFile("/proc/thread-self/mountinfo")
	dir := stage(t)
	_, err := r.Mount(dir)
	if err == nil || !strings.Contains(err.Error(), "symbolic link meanwhile") {
		t.Errorf("mount over what became a symbolic link: %v", err)
	}
	if after, _ := os.ReadFile("/proc/thread-self/mountinfo"); string(after) != string(before) {
		t.Errorf("left mounted:\n%s", after)
	}
	if _, err := r.Mount(dir); err == nil {
		t.Error("mounted twice")
	}
}

func TestMountOfAClosedRoot(t *testing.T) {
	testhost.PrivateMounts(t)
	r := open(t, testConfig())
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mount(stage(t)); err == nil {
		t.Error("a closed root was mounted")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// A mount made in one namespace from sources opened in another: the descriptors
// are what counts.
func TestMountInANamespaceMadeAfterOpen(t *testing.T) {
	asRoot(t)
	r := open(t, testConfig())
	testhost.PrivateMounts(t)
	if _, err := r.Mount(stage(t)); err != nil {
		t.Error(err)
	}
}

func TestBindsBelowMountPointsAreSetAside(t *testing.T) {
	testhost.PrivateMounts(t)
	src := t.TempDir()
	testhost.WriteFile(t, src+"/file", "seen\n")
	testhost.WriteFile(t, src+"/in/x", "")
	other := t.TempDir()
	testhost.WriteFile(t, other+"/deep", "")
	cfg := testConfig()
	cfg.Binds = []Bind{
		{Source: other, Target: "/tmp/a/data/in"},
		{Source: src, Target: "/tmp/a/data"},
		{Source: src + "/file", Target: "/home/sandbox/file"},
	}
	_, m := mounted(t, cfg)
	var targets []string
	for _, b := range m.Binds {
		targets = append(targets, b.Destination)
		if b.Type != "bind" || !slices.Equal(b.Options, []string{"rbind"}) {
			t.Errorf("%+v", b)
		}
	}
	if want := []string{"/home/sandbox/file", "/tmp/a/data"}; !slices.Equal(targets, want) {
		t.Fatalf("set aside: %q, want %q", targets, want)
	}
	if text, err := os.ReadFile(m.Binds[0].Source); string(text) != "seen\n" {
		t.Errorf("file: %q, %v", text, err)
	}
	if _, err := os.Stat(m.Binds[1].Source + "/in/deep"); err != nil {
		t.Error(err)
	}
	for _, p := range []string{"/tmp", "/home/sandbox"} {
		if e, err := os.ReadDir(m.Path + p); err != nil || len(e) > 0 {
			t.Errorf("%s of the skeleton is not empty: %v, %v", p, e, err)
		}
	}
}

func TestUnfoldedBindShowsTheSame(t *testing.T) {
	testhost.PrivateMounts(t)
	dir, tool := t.TempDir(), filepath.Join(t.TempDir(), "tool")
	testhost.WriteFile(t, tool, "#!/bin/sh\necho a tool\n")
	if err := os.Chmod(tool, 0o755); err != nil {
		t.Fatal(err)
	}
	testhost.WriteFile(t, dir+"/file", "")
	cfg := testConfig()
	cfg.Binds = []Bind{{Source: tool, Target: "/usr/local/bin/new-tool"}, {Source: dir, Target: "/usr/share/new/place"}}
	r, m := mounted(t, cfg)
	if got := inside(t, r, m.Path, 1000, "/usr/local/bin/new-tool"); got != "a tool" {
		t.Errorf("the tool says %q", got)
	}
	for _, d := range []string{"/usr", "/usr/local", "/usr/local/bin", "/usr/share"} {
		want, got := names(t, d), names(t, m.Path+d)
		got = slices.DeleteFunc(got, func(n string) bool { return n == "new" || n == "new-tool" })
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, on the host %q", d, got, want)
		}
	}
	if _, err := os.Lstat("/usr/local/bin/new-tool"); err == nil {
		t.Error("a mount point was made on the host")
	}
	if err := os.WriteFile(m.Path+"/usr/share/new/place/x", nil, 0o600); err == nil {
		t.Error("the bind is writable")
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
