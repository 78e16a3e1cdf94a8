package rootfs

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

func TestPrivateDirectoriesAreNeverShown(t *testing.T) {
	asRoot(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "x", "state")
	testhost.WriteFile(t, state+"/secret", "")
	testhost.Symlink(t, state, dir+"/alias")
	testhost.Symlink(t, dir+"/x", dir+"/up")
	for _, private := range []string{state, dir + "/alias", dir + "/up/state"} {
		for _, src := range []string{state, dir, dir + "/x", state + "/secret", dir + "/alias", dir + "/alias/secret", dir + "/up"} {
			for _, c := range []Config{
				{Binds: []Bind{{Source: src, Target: "/data"}}},
				{Binds: []Bind{{Source: src, Target: "/data", Writable: true}}},
				{Workspace: src},
				{Dir: src},
				{Prefixes: []string{src}},
			} {
				c.User, c.IDBase, c.Private = testUser, testBase, []string{private}
				r, err := Open(c)
				var forbidden *ForbiddenError
				if !errors.As(err, &forbidden) || !strings.Contains(err.Error(), "the runtime's own directory") {
					t.Errorf("private %s, %+v: %v", private, c, err)
				}
				if err == nil {
					_ = r.Close()
				}
			}
		}
	}
	c := testConfig()
	c.Private, c.Workspace = []string{state, "/nowhere/at/all"}, dir+"/other"
	testhost.WriteFile(t, dir+"/other/file", "")
	open(t, c)
}

// refusal opens a root and gives the error it must end with.
func refusal(t *testing.T, c Config) error {
	t.Helper()
	r, err := Open(c)
	if err == nil {
		_ = r.Close()
		t.Errorf("%+v is allowed", c)
		return errors.New("none")
	}
	return err
}

func TestSourcesThatAreRefused(t *testing.T) {
	asRoot(t)
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/file", "")
	testhost.WriteFile(t, dir+"/roots/a/file", "")
	testhost.Symlink(t, "/etc", dir+"/to-etc")
	testhost.Symlink(t, "/", dir+"/to-root")
	testhost.Symlink(t, "/proc/self/root/srv", dir+"/magic")
	testhost.Symlink(t, dir, dir+"/roots/out")
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(dir+"/device", unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	roots := []string{dir + "/roots"}
	tests := map[string]struct {
		c    Config
		want string
		is   error
	}{
		"missing workspace":        {c: Config{Workspace: dir + "/none"}, want: "not created", is: fs.ErrNotExist},
		"missing bind":             {c: Config{Binds: []Bind{{Source: dir + "/none", Target: "/d"}}}, want: "does not exist", is: fs.ErrNotExist},
		"workspace is a file":      {c: Config{Workspace: dir + "/file"}, want: "not a directory"},
		"rootfs is a file":         {c: Config{Dir: dir + "/file"}, want: "not a directory"},
		"rootfs is the host":       {c: Config{Dir: "/"}, want: "whole host"},
		"relative":                 {c: Config{Workspace: "proj"}, want: "absolute"},
		"dots":                     {c: Config{Workspace: dir + "/../../../../../../etc/../usr"}, want: "forbidden"},
		"symlink to /etc":          {c: Config{Workspace: dir + "/to-etc"}, want: "lies under /etc"},
		"symlink and below":        {c: Config{Workspace: dir + "/to-etc/ssl"}, want: "lies under /etc"},
		"symlink to /":             {c: Config{Binds: []Bind{{Source: dir + "/to-root", Target: "/d"}}}, want: "whole host"},
		"magic link":               {c: Config{Workspace: dir + "/magic"}, want: "too many levels"},
		"fifo":                     {c: Config{Binds: []Bind{{Source: dir + "/fifo", Target: "/d"}}}, want: "is a fifo"},
		"device":                   {c: Config{Binds: []Bind{{Source: dir + "/device", Target: "/d"}}}, want: "is a device"},
		"socket of our own":        {c: Config{Binds: []Bind{{Source: dir + "/socket", Target: "/d"}}}, want: "is a socket of the runtime itself"},
		"socket to write to":       {c: Config{Binds: []Bind{{Source: dir + "/socket", Target: "/d", Writable: true}}}, want: "leave :rw out"},
		"socket as workspace":      {c: Config{Workspace: dir + "/socket"}, want: "is a socket; show it with a bind"},
		"socket as root":           {c: Config{Dir: dir + "/socket"}, want: "is a socket; show it with a bind"},
		"outside the roots":        {c: Config{Workspace: dir, WorkspaceRoots: roots}, want: "outside the workspace roots"},
		"out of the roots by link": {c: Config{Workspace: dir + "/roots/out", WorkspaceRoots: roots}, want: "outside the workspace roots"},
		"bind outside the roots": {c: Config{Binds: []Bind{{Source: dir, Target: "/d", Writable: true}}, WorkspaceRoots: roots},
			want: "outside the workspace roots"},
		"forbidden within the roots": {c: Config{Workspace: "/etc/ssl", WorkspaceRoots: []string{"/"}}, want: "lies under /etc"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := test.c
			c.User, c.IDBase = testUser, testBase
			err := refusal(t, c)
			if !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, c := range []Config{
		{Workspace: dir + "/roots/a", WorkspaceRoots: roots},
		{Binds: []Bind{{Source: dir, Target: "/d"}}, WorkspaceRoots: roots},
	} {
		c.User, c.IDBase = testUser, testBase
		open(t, c)
	}
}

// The kernel's own file systems are known by what they are, wherever mounted.
func TestKernelViewsElsewhereAreRefused(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := t.TempDir()
	proc := filepath.Join(dir, "chroot", "proc")
	if err := os.MkdirAll(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	mountAt(t, "proc", proc, "")
	for name, bind := range map[string]Bind{
		"itself":          {Source: proc, Target: "/d"},
		"below":           {Source: proc + "/sys", Target: "/d"},
		"above":           {Source: dir, Target: "/d"},
		"above, writable": {Source: dir, Target: "/d", Writable: true},
	} {
		c := testConfig()
		c.Binds = []Bind{bind}
		var forbidden *ForbiddenError
		if err := refusal(t, c); !errors.As(err, &forbidden) || !strings.Contains(err.Error(), "proc file system") {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := testConfig()
	c.Dir = filepath.Join(dir, "chroot")
	testhost.WriteFile(t, c.Dir+"/etc/x", "")
	_, m := mounted(t, c)
	if e := names(t, m.Path+"/proc"); len(e) > 0 {
		t.Errorf("the directory's own proc is shown: %q", e)
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no range":            func(c *Config) { c.IDBase = 0 },
		"a range of users":    func(c *Config) { c.IDBase = 1000 },
		"a range to the end":  func(c *Config) { c.IDBase = 1<<32 - 65536 },
		"uid out of range":    func(c *Config) { c.User.UID = 65536 },
		"home with a colon":   func(c *Config) { c.User.Home = "/a:b" },
		"host name of two":    func(c *Config) { c.Hostname = "a b" },
		"mount point /":       func(c *Config) { c.MountPoints = []string{"/"} },
		"mount point unclean": func(c *Config) { c.MountPoints = []string{"/a/../b"} },
		"private relative":    func(c *Config) { c.Private = []string{"x"} },
		"root relative":       func(c *Config) { c.WorkspaceRoots = []string{"x"} },
	} {
		c := testConfig()
		change(&c)
		if _, err := newPlan(c, func(*source) {}); err == nil {
			t.Errorf("%s is allowed", name)
		}
	}
}

// What is below a source is reached over no symbolic link, not even one that
// stays inside, and never above it.
func TestOpenBeneathFollowsNothing(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/in/x", "")
	testhost.WriteFile(t, dir+"/out", "")
	testhost.Symlink(t, dir+"/out", dir+"/in/link")
	testhost.Symlink(t, ".", dir+"/in/here")
	s, err := openSource(dir+"/in", false, asNobody, &hostpaths.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for rel, want := range map[string]error{"x": nil, "here/x": unix.ELOOP, "../out": unix.EXDEV, "/etc": unix.EXDEV, "none": unix.ENOENT} {
		if _, err := s.lookup(rel); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", rel, err, want)
		}
	}
	if f, err := s.lookup("link"); err != nil || f.link != dir+"/out" {
		t.Errorf("link: %+v, %v", f, err)
	}
}
