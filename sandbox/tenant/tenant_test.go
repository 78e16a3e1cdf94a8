package tenant_test

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
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/tenant"
)

func open(t *testing.T, dir string) *tenant.Tenants {
	t.Helper()
	tenants, err := tenant.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tenants.Close() })
	return tenants
}

func session(t *testing.T, tenants *tenant.Tenants, user, id string) *tenant.Session {
	t.Helper()
	s, err := tenants.Session(user, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestIdsAreNames(t *testing.T) {
	dir := t.TempDir()
	tenants := open(t, dir+"/data")
	for _, id := range []string{"a", "4711", "_x", "Alice", "alice@example.org", "a.b-c_d+e=", strings.Repeat("x", tenant.MaxID)} {
		if s := session(t, tenants, id, id); s.Host() != filepath.Join(dir, "data", id, id) {
			t.Errorf("%q is at %s", id, s.Host())
		}
	}
	before, err := tenants.Users()
	if err != nil || len(before) != 7 {
		t.Fatalf("%q, %v", before, err)
	}
	for _, id := range []string{
		"", ".", "..", "../x", "a/b", "/", "/etc", "a/../../b", "a\x00b", "a\nb", "a b", "ä", "\xff", `a\b`, "~", "-rf", ".hidden",
		".trash", "*", "$(id)", "+x", strings.Repeat("x", tenant.MaxID+1), "a\u202eb", "..a", "@a",
	} {
		calls := map[string]error{"remove user": tenants.RemoveUser(id), "remove": tenants.Remove("a", id), "remove of": tenants.Remove(id, "a")}
		_, calls["user"] = tenants.Session(id, "a")
		_, calls["session"] = tenants.Session("a", id)
		_, calls["find"] = tenants.Find("a", id)
		_, calls["list"] = tenants.Sessions(id)
		for call, err := range calls {
			var wrong *tenant.IDError
			if !errors.As(err, &wrong) || wrong.ID != id {
				t.Errorf("%s %q: %v", call, id, err)
			}
		}
	}
	if after, err := tenants.Users(); err != nil || !slices.Equal(before, after) {
		t.Errorf("got %q, %v", after, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("beside it are %v, %v", entries, err)
	}
}

func TestSessionsArePrivateAndListed(t *testing.T) {
	dir := t.TempDir() + "/data"
	tenants := open(t, dir)
	for _, s := range [][2]string{{"bob", "2"}, {"alice", "b"}, {"alice", "a"}} {
		if err := os.WriteFile(session(t, tenants, s[0], s[1]).Host()+"/f", []byte(s[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"", "/alice", "/alice/a", "/bob/2", "/.trash"} {
		info, err := os.Stat(dir + path)
		if err != nil || info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
	}
	users, err := tenants.Users()
	sessions, err2 := tenants.Sessions("alice")
	if err := errors.Join(err, err2); err != nil || !slices.Equal(users, []string{"alice", "bob"}) || !slices.Equal(sessions, []string{"a", "b"}) {
		t.Errorf("got %q, %q, %v", users, sessions, err)
	}
	// What a sandbox did to its workspace's mode is undone.
	if err := os.Chmod(dir+"/alice/a", 0o777); err != nil {
		t.Fatal(err)
	}
	again := session(t, tenants, "alice", "a")
	if f, err := again.Open("/workspace/f", os.O_RDONLY, 0); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	if info, err := os.Stat(dir + "/alice/a"); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if _, err := tenants.Find("alice", "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if sessions, err := tenants.Sessions("nobody"); err != nil || len(sessions) > 0 {
		t.Errorf("got %q, %v", sessions, err)
	}
}

func TestDirectoriesOfOthersAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/open", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := tenant.Open(dir + "/open"); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("others may enter: %v", err)
	}
	tenants := open(t, dir+"/data")
	if err := errors.Join(os.Mkdir(dir+"/elsewhere", 0o700), os.Symlink("../elsewhere", dir+"/data/eve"), os.Mkdir(dir+"/data/bob", 0o700),
		os.Symlink("../../elsewhere", dir+"/data/bob/link"), os.Mkdir(dir+"/data/wide", 0o777), os.Chmod(dir+"/data/wide", 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, s := range [][2]string{{"eve", "s"}, {"bob", "link"}, {"wide", "s"}} {
		if _, err := tenants.Session(s[0], s[1]); err == nil {
			t.Errorf("%q was opened", s)
		}
	}
	if entries, err := os.ReadDir(dir + "/elsewhere"); err != nil || len(entries) > 0 {
		t.Errorf("elsewhere are %v, %v", entries, err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir+"/data/bob", 1234, 1234); err != nil {
			t.Fatal(err)
		}
		if _, err := tenants.Session("bob", "s"); err == nil || !strings.Contains(err.Error(), "belongs to user 1234") {
			t.Errorf("another's: %v", err)
		}
	}
}

// deepen makes a directory so deep that no path reaches its ground.
func deepen(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { unix.Close(at) }()
	for range depth {
		if err := unix.Mkdirat(at, "deeper", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "deeper", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(at)
		at = next
	}
}

func TestRemovedSessionsAreGoneAtOnceAndSweptLater(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/canary", []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	tenants := open(t, dir+"/data")
	host := session(t, tenants, "alice", "1").Host()
	session(t, tenants, "alice", "2")
	session(t, tenants, "bob", "1")
	deepen(t, host, 6000)
	for n := range 300 {
		if err := errors.Join(os.Mkdir(fmt.Sprintf("%s/d%d", host, n), 0o700), os.WriteFile(fmt.Sprintf("%s/d%d/f", host, n), nil, 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(dir, host+"/link"), os.Symlink("../../../..", host+"/up"), unix.Mkfifo(host+"/fifo", 0),
		os.Mkdir(host+"/closed", 0o700), os.WriteFile(host+"/closed/f", nil, 0), os.Chmod(host+"/closed", 0), os.Chmod(host, 0o500)); err != nil {
		t.Fatal(err)
	}
	if err := tenants.Remove("alice", "1"); err != nil {
		t.Fatal(err)
	}
	if sessions, err := tenants.Sessions("alice"); err != nil || !slices.Equal(sessions, []string{"2"}) {
		t.Errorf("got %q, %v", sessions, err)
	}
	if err := tenants.Remove("alice", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("again: %v", err)
	}
	if s := session(t, tenants, "alice", "1"); s.Host() != host {
		t.Errorf("made anew at %s", s.Host())
	}
	if err := tenants.RemoveUser("bob"); err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := tenants.Sweep(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// As the next program would.
	if err := open(t, dir+"/data").Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir + "/data/.trash"); err != nil || len(left) > 0 {
		t.Errorf("left are %d, %v", len(left), err)
	}
	if text, err := os.ReadFile(dir + "/canary"); err != nil || string(text) != "untouched" {
		t.Errorf("the canary is %q, %v", text, err)
	}
	if users, err := tenants.Users(); err != nil || !slices.Equal(users, []string{"alice"}) {
		t.Errorf("got %q, %v", users, err)
	}
}

// What is removed and made at the same time is one or the other.
func TestSessionsAreMadeAndRemovedAtOnce(t *testing.T) {
	tenants := open(t, t.TempDir()+"/data")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				if s, err := tenants.Session("u", "s"); err == nil {
					s.Close()
				} else if !strings.Contains(err.Error(), "removed all the time") {
					t.Error(err)
				}
				if err := tenants.RemoveUser("u"); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Error(err)
				}
				if err := tenants.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestPathsAreTranslatedBothWays(t *testing.T) {
	s := session(t, open(t, t.TempDir()+"/data"), "alice", "1")
	host := s.Host()
	if err := errors.Join(os.MkdirAll(host+"/a/b", 0o700), os.WriteFile(host+"/a/b/f", []byte("content"), 0o600),
		os.Symlink("/workspace/a/b", host+"/absolute"), os.Symlink("a/../a/b/.", host+"/relative"), os.Symlink("absolute/f", host+"/chain"),
		os.Symlink("..", host+"/a/b/parent")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"/workspace":                             host,
		"/workspace/":                            host,
		"/workspace/a/b/f":                       host + "/a/b/f",
		"a/b/f":                                  host + "/a/b/f",
		"//workspace/./a//b/../b/f":              host + "/a/b/f",
		"/workspace/absolute/f":                  host + "/a/b/f",
		"/workspace/relative/f":                  host + "/a/b/f",
		"/workspace/chain":                       host + "/a/b/f",
		"/workspace/a/b/parent/b/f":              host + "/a/b/f",
		"/workspace/absolute/../new":             host + "/a/new",
		"/workspace/absolute/new":                host + "/a/b/new",
		"/workspace/new\n\xff":                   host + "/new\n\xff",
		"/workspace/" + strings.Repeat("n", 255): host + "/" + strings.Repeat("n", 255),
	} {
		got, err := s.HostPath(name)
		if err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", name, got, err, want)
		}
		back, err := s.SandboxPath(got)
		if err != nil || back != "/workspace"+strings.TrimPrefix(want, host) {
			t.Errorf("%q: and back %q, %v", name, back, err)
		}
	}
	f, err := s.Open("/workspace/chain", os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "content" || f.Name() != "/workspace/chain" {
		t.Errorf("got %q of %s, %v", text, f.Name(), err)
	}
}

func TestWhatLeadsOutIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/canary", []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := session(t, open(t, dir+"/data"), "alice", "1")
	host := s.Host()
	if err := errors.Join(os.Mkdir(host+"/a", 0o700), os.Symlink("/etc/passwd", host+"/etc"), os.Symlink("../../../canary", host+"/up"),
		os.Symlink("loop", host+"/loop"), os.Symlink(dir+"/canary", host+"/named"), os.Symlink("/workspaces", host+"/beside"),
		os.Symlink("/proc/self/root", host+"/magic"), os.Symlink("../..", host+"/a/above"), unix.Mkfifo(host+"/fifo", 0o600),
		os.WriteFile(host+"/f", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"/etc/passwd": tenant.ErrOutside, "/": tenant.ErrOutside, "/workspace/..": tenant.ErrOutside, "/workspaces/f": tenant.ErrOutside,
		"/workspace/../workspace/../../etc/passwd": tenant.ErrOutside, "..": tenant.ErrOutside, "a/../../x": tenant.ErrOutside,
		"/workspace/etc": tenant.ErrOutside, "/workspace/up": tenant.ErrOutside, "/workspace/named": tenant.ErrOutside,
		"/workspace/beside/f": tenant.ErrOutside, "/workspace/magic/etc/passwd": tenant.ErrOutside, "/workspace/a/above/canary": tenant.ErrOutside,
		"/workspace/loop": unix.ELOOP, "/workspace/fifo": tenant.ErrNotRegular, "/workspace/f/x": unix.ENOTDIR, "/workspace/none/x": fs.ErrNotExist,
		"": fs.ErrNotExist, "a\x00": unix.EINVAL, strings.Repeat("a/", 3000): unix.ENAMETOOLONG, strings.Repeat("x", 256): unix.ENAMETOOLONG,
		host + "/f": tenant.ErrOutside,
	} {
		for _, flag := range []int{os.O_RDONLY, os.O_WRONLY | os.O_CREATE | os.O_TRUNC} {
			f, err := s.Open(name, flag, 0o600)
			var path *fs.PathError
			if !errors.Is(err, want) || !errors.As(err, &path) || path.Path != name {
				t.Errorf("%.60q: got %v, %v, want %v", name, f, err, want)
			}
			if err != nil && !strings.Contains(name, dir) && strings.Contains(err.Error(), dir) {
				t.Errorf("%.60q: a path of the host is in %v", name, err)
			}
		}
	}
	for _, path := range []string{dir + "/canary", "/etc/passwd", "/", dir, host + "/../../bob", host + "/up", host + "/etc", "relative", host + "x"} {
		if got, err := s.SandboxPath(path); err == nil || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %q, %v", path, got, err)
		}
	}
	if text, err := os.ReadFile(dir + "/canary"); err != nil || string(text) != "untouched" {
		t.Errorf("the canary is %q, %v", text, err)
	}
}

func TestErrorsAreShownWithoutHostPaths(t *testing.T) {
	s := session(t, open(t, t.TempDir()+"/data"), "alice", "1")
	_, missing := os.ReadFile(s.Host() + "/a/b")
	_, elsewhere := os.ReadFile("/nowhere/secret")
	for _, test := range []struct {
		err  error
		want string
		is   error
	}{
		{missing, "open /workspace/a/b: no such file or directory", fs.ErrNotExist},
		{fmt.Errorf("build in %s: %w", s.Host(), missing), "open /workspace/a/b: no such file or directory", fs.ErrNotExist},
		{elsewhere, "open a file: no such file or directory", fs.ErrNotExist},
		{os.Rename(s.Host()+"/a", "/nowhere/b"), "rename /workspace/a a file: no such file or directory", fs.ErrNotExist},
		{fmt.Errorf("disk at %s: %w", s.Host(), unix.ENOSPC), "no space left on device", unix.ENOSPC},
		{errors.New("secret of " + s.Host()), "it failed", nil},
	} {
		got := s.Error(test.err)
		if got.Error() != test.want || test.is != nil && !errors.Is(got, test.is) {
			t.Errorf("%v: got %v", test.err, got)
		}
		for err := got; err != nil; err = errors.Unwrap(err) {
			if strings.Contains(err.Error(), s.Host()) {
				t.Errorf("within it is %v", err)
			}
		}
	}
	if s.Error(nil) != nil {
		t.Error("nil is an error")
	}
}

func TestWorkspaceRootsAreChecked(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("/", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"/", "/proc/self", "/sys", dir + "/file", dir + "/link", dir + "/none"} {
		if w, err := tenant.OpenWorkspace(host, "/workspace"); err == nil {
			t.Errorf("%s was taken as %s", host, w.Host())
		}
	}
	for _, inside := range []string{"", "/", "workspace", "/.."} {
		if _, err := tenant.OpenWorkspace(dir, inside); err == nil {
			t.Errorf("%q was taken", inside)
		}
	}
	w, err := tenant.OpenWorkspace(dir, "/srv/data/")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.HostPath("/srv/data/file"); err != nil || got != dir+"/file" {
		t.Errorf("got %s, %v", got, err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Error(err)
	}
}

// A tmpfs has no project quotas: integration/quota_test.go has limits that hold.
func TestLimitWithoutQuotasIsUnavailable(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "tenant")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := session(t, open(t, dir+"/data"), "alice", "4711")
	err = s.Limit(1<<20, 100)
	if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "session 4711 of user alice") || !strings.Contains(err.Error(), "mounted with prjquota") {
		t.Errorf("%v", err)
	}
	if err := s.Limit(0, 100); err == nil || errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("no bytes: %v", err)
	}
}
