package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// describe is a plan as text, a line for each node.
func describe(n *node, at string) string {
	var b strings.Builder
	switch covered := map[bool]string{true: " covered"}[n.covered]; n.kind {
	case dirNode:
		fmt.Fprintf(&b, "%s dir %03o%s\n", at, n.mode, covered)
	case linkNode:
		fmt.Fprintf(&b, "%s -> %s\n", at, n.text)
	case fileNode:
		fmt.Fprintf(&b, "%s file\n", at)
	case bindNode:
		fmt.Fprintf(&b, "%s = %s%s%s\n", at, n.src.path, map[bool]string{true: " rw"}[n.src.writable], map[bool]string{true: " overlaid"}[n.src.overlay != nil])
	case passNode:
		fmt.Fprintf(&b, "%s there%s\n", at, covered)
	case areaNode:
		fmt.Fprintf(&b, "%s area %s %o %d\n", at, n.text, n.mode, n.uid)
	case maskNode:
		fmt.Fprintf(&b, "%s hidden\n", at)
	case sameNode:
		fmt.Fprintf(&b, "%s as %s\n", at, n.src.path)
	}
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		b.WriteString(describe(n.children[name], path.Join(at, name)))
	}
	return b.String()
}

func planOf(t *testing.T, c Config) *plan {
	t.Helper()
	p, err := newPlan(c, func(*source) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// dirConfig is a root of a small directory, which is given too.
func dirConfig(t *testing.T) (Config, string) {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []string{"etc/passwd", "usr/bin/tool", "usr/lib/so", "home/u/file", "proc/own", "tmp/own", "run/own", "dev/own", "workspace/own", "top"} {
		testhost.WriteFile(t, dir+"/"+f, f)
	}
	testhost.Symlink(t, "usr/bin", dir+"/bin")
	testhost.Symlink(t, "/usr/lib", dir+"/lib")
	c := testConfig()
	c.Dir, c.MountPoints = dir, []string{"/tmp", "/run", "/workspace"}
	return c, dir
}

func TestPlanOfADirectory(t *testing.T) {
	c, dir := dirConfig(t)
	src := t.TempDir()
	c.Binds = []Bind{
		{Source: src, Target: "/bin/new/place"},   // through a symbolic link, unfolds /usr and /usr/bin
		{Source: src, Target: "/home/u"},          // exists: attached over it
		{Source: src, Target: "/opt/x"},           // nothing there
		{Source: dir + "/top", Target: "/lib/so"}, // an absolute symbolic link
		{Source: src, Target: "/tmp/in", Writable: true},
	}
	p := planOf(t, c)
	got := strings.NewReplacer(dir, "DIR", src, "SRC").Replace(describe(p.root, "/"))
	const want = `/ dir 755
/bin -> usr/bin
/dev dir 755 covered
/etc = DIR/etc
/home = DIR/home
/home/u = SRC
/lib -> /usr/lib
/opt dir 755
/opt/x = SRC
/proc dir 755 covered
/run dir 755 covered
/sys dir 755 covered
/tmp dir 755 covered
/tmp/in = SRC rw
/top = DIR/top
/usr dir 755
/usr/bin dir 755
/usr/bin/new dir 755
/usr/bin/new/place = SRC
/usr/bin/tool = DIR/usr/bin/tool
/usr/lib = DIR/usr/lib
/usr/lib/so = DIR/top
/workspace dir 755 covered
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlanOfTheHost(t *testing.T) {
	c := testConfig()
	c.Workspace = t.TempDir()
	text := describe(planOf(t, c).root, "/")
	for _, want := range []string{
		"/usr = /usr\n", "/etc/passwd file\n", "/etc/group file\n", "/etc/hosts file\n", "/etc/nsswitch.conf file\n", "/etc/resolv.conf file\n", "/etc/hostname file\n",
		"/home dir 755\n/home/sandbox dir 755 covered\n", "/workspace = " + c.Workspace + " rw\n", "/proc dir 755 covered\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, top := range hostpaths.OwnTop {
		_, err := os.Lstat("/" + top)
		if in := strings.Contains(text, "\n/"+top+" "); in != (err == nil) {
			t.Errorf("/%s in the root: %t; on the host: %v", top, in, err)
		}
	}
	for _, secret := range []string{"shadow", "ssh", "private", "sudoers", "profile.d", "machine-id", "/root"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is in\n%s", secret, text)
		}
	}
}

func TestEtcTakesNothingThatUsersCannotRead(t *testing.T) {
	p := &plan{root: newDir(), sources: sources{rules: &hostpaths.Rules{}}}
	t.Cleanup(p.close)
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/open", "")
	testhost.WriteFile(t, dir+"/closed", "")
	testhost.WriteFile(t, dir+"/dir/x", "")
	testhost.Symlink(t, "closed", dir+"/to-closed")
	testhost.Symlink(t, "open", dir+"/to-open")
	testhost.Symlink(t, "/usr/bin/env", dir+"/to-usr")
	testhost.Symlink(t, "gone", dir+"/dangling")
	testhost.Symlink(t, "/dev/null", dir+"/to-null")
	testhost.Symlink(t, "/proc/version", dir+"/to-proc")
	testhost.Symlink(t, "/proc/self/exe", dir+"/to-magic")
	for name, mode := range map[string]os.FileMode{"closed": 0o640, "dir": 0o750} {
		if err := os.Chmod(dir+"/"+name, mode); err != nil {
			t.Fatal(err)
		}
	}
	etc, err := p.sources.open(dir)
	if err != nil {
		t.Fatal(err)
	}
	testhost.Symlink(t, "../usr", dir+"/through")
	testhost.WriteFile(t, dir+"/../usr/x", "")
	t.Cleanup(func() { _ = os.RemoveAll(dir + "/../usr") })
	for name, want := range map[string]string{
		"through/x": "/x file\n", "open": "/x = " + dir + "/open\n", "to-open": "/x = " + dir + "/to-open\n", "to-usr": "/x -> /usr/bin/env\n",
		"to-null": "", "to-proc": "", "to-magic": "",
		"closed": "", "to-closed": "", "dir": "", "dangling": "", "open/below": "",
	} {
		n, err := newEtcPlan(p, etc, p.root).node(p.viewOf(etc), name)
		if err != nil {
			t.Error(err)
			continue
		}
		got := ""
		if n != nil {
			got = describe(n, "/x")
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestTopLevelIsTakenAsItIs(t *testing.T) {
	p := &plan{root: newDir(), sources: sources{rules: &hostpaths.Rules{}}}
	t.Cleanup(p.close)
	for _, name := range []string{"home", "bin", "no-such-directory"} {
		if err := p.takeTop(name); err != nil {
			t.Error(err)
		}
	}
	want := "/ dir 755\n/bin = /bin\n/home = /home\n"
	if to, err := os.Readlink("/bin"); err == nil {
		want = "/ dir 755\n/bin -> " + to + "\n/home = /home\n"
	}
	if got := describe(p.root, "/"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTargetsThatAreRefused(t *testing.T) {
	src := t.TempDir()
	testhost.WriteFile(t, src+"/file", "")
	rw := t.TempDir()
	for name, test := range map[string]struct {
		binds []Bind
		want  string
	}{
		"relative":            {[]Bind{{src, "data", false}}, "absolute"},
		"unclean":             {[]Bind{{src, "/data/", false}}, "write it as /data"},
		"dots":                {[]Bind{{src, "/data/../etc", false}}, "write it as /etc"},
		"root":                {[]Bind{{src, "/", false}}, "--rootfs"},
		"proc":                {[]Bind{{src, "/proc", false}}, "/mnt/proc"},
		"below sys":           {[]Bind{{src, "/sys/x", false}}, "the sandbox's own"},
		"dev":                 {[]Bind{{src, "/dev/x", false}}, "the sandbox's own"},
		"proc by link":        {[]Bind{{src, "/to-proc/x", false}}, "the sandbox's own"},
		"root by link":        {[]Bind{{src, "/to-root", false}}, "--rootfs"},
		"a mount point":       {[]Bind{{src, "/tmp", false}}, "its own /tmp"},
		"twice":               {[]Bind{{src, "/data", false}, {rw, "/data", false}}, "two binds"},
		"twice, over a link":  {[]Bind{{src, "/usr/bin/x", false}, {rw, "/bin/x", false}}, "two binds"},
		"twice, set aside":    {[]Bind{{src, "/tmp/x", false}, {rw, "/tmp/x", false}}, "two binds"},
		"workspace twice":     {[]Bind{{src, "/workspace", false}}, "two binds"},
		"hides another":       {[]Bind{{src, "/opt/x/y", false}, {src, "/to/opt/x", false}}, "hide"},
		"file on directory":   {[]Bind{{src + "/file", "/etc", false}}, "is a file"},
		"directory on file":   {[]Bind{{src, "/etc/passwd", false}}, "is one"},
		"below a file":        {[]Bind{{src, "/etc/passwd/x", false}}, "not a directory"},
		"missing in writable": {[]Bind{{rw, "/data", true}, {src, "/data/none", false}}, "make it there first"},
		"missing, set aside":  {[]Bind{{src, "/tmp/x", false}, {rw, "/tmp/x/none", false}}, "make it there first"},
		"links in a circle":   {[]Bind{{src, "/circle/x", false}}, "too many levels"},
		"over a dead link":    {[]Bind{{src, "/dead/x", false}}, "leads nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			c, dir := dirConfig(t)
			c.Workspace, c.MountPoints = rw, []string{"/tmp"}
			c.Binds = test.binds
			testhost.Symlink(t, "/proc", dir+"/to-proc")
			testhost.Symlink(t, "../..", dir+"/to-root")
			testhost.Symlink(t, "/", dir+"/to")
			testhost.Symlink(t, "circle", dir+"/circle")
			testhost.Symlink(t, "none/../x", dir+"/dead")
			p, err := newPlan(c, func(*source) {})
			if err == nil {
				t.Fatalf("allowed:\n%s", describe(p.root, "/"))
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Whatever links a directory has, nothing leads out of the root.
func TestLinksInADirectoryStayInside(t *testing.T) {
	outside := t.TempDir()
	testhost.WriteFile(t, outside+"/passwd", "outside")
	dir := t.TempDir()
	testhost.Symlink(t, outside, dir+"/etc")
	testhost.Symlink(t, "../../../../../.."+outside, dir+"/opt")
	testhost.Symlink(t, outside, dir+"/home")
	testhost.WriteFile(t, dir+"/usr/x", "")
	testhost.Symlink(t, outside, dir+"/usr/local")
	src := t.TempDir()
	c := testConfig()
	c.Dir = dir
	c.MountPoints = []string{"/home/sandbox"}
	c.Binds = []Bind{{src, "/etc/new", false}, {src, "/opt/new2", false}, {src, "/usr/local/new3", false}}
	text := describe(planOf(t, c).root, "/")
	for _, name := range []string{"new", "new2", "new3"} {
		if want := "\n" + outside + "/" + name + " = " + src + "\n"; !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.Contains(text, outside+"/sandbox dir 755 covered\n") {
		t.Errorf("no mount point in\n%s", text)
	}
	if strings.Contains(text, "passwd") {
		t.Errorf("something of outside in\n%s", text)
	}
}

func TestMountPointLedAwayIsRefused(t *testing.T) {
	for link, to := range map[string]string{"home": "/proc", "home/sandbox": "/proc", "home/": "/proc/1/root", "home/sandbox/": "/"} {
		dir := t.TempDir()
		link = strings.TrimSuffix(link, "/")
		if err := os.MkdirAll(path.Dir(dir+"/"+link), 0o755); err != nil {
			t.Fatal(err)
		}
		testhost.Symlink(t, to, dir+"/"+link)
		c := testConfig()
		c.Dir, c.MountPoints = dir, []string{"/home/sandbox"}
		if _, err := newPlan(c, func(*source) {}); err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s -> %s: %v", link, to, err)
		}
	}
}

// A mount point that the directory has stays one when what is beside it is
// mounted entry by entry.
func TestMountPointSurvivesUnfolding(t *testing.T) {
	dir, src := t.TempDir(), t.TempDir()
	testhost.WriteFile(t, dir+"/home/sandbox/theirs", "")
	testhost.WriteFile(t, dir+"/home/u/file", "")
	c := testConfig()
	c.Dir, c.MountPoints = dir, []string{"/home/sandbox"}
	c.Binds = []Bind{{src, "/home/new", false}}
	text := describe(planOf(t, c).root, "/")
	if want := "/home dir 755\n/home/new = " + src + "\n/home/sandbox dir 755 covered\n/home/u = " + dir + "/home/u\n"; !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

func TestUnfoldingIsBounded(t *testing.T) {
	src := t.TempDir()
	for i := range maxEntries + 1 {
		if err := os.Symlink("x", fmt.Sprintf("%s/%d", src, i)); err != nil {
			t.Fatal(err)
		}
	}
	c := testConfig()
	c.Binds = []Bind{{src, "/data", false}, {t.TempDir(), "/data/new", false}}
	if _, err := newPlan(c, func(*source) {}); err == nil || !strings.Contains(err.Error(), "more than 4096") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(src + "/0"); err != nil {
		t.Fatal(err)
	}
	planOf(t, c)
}

// A bind over a directory that holds a mount point of the sandbox keeps it.
func TestMountPointsSurviveBinds(t *testing.T) {
	src := t.TempDir()
	testhost.WriteFile(t, src+"/u/file", "")
	c := testConfig()
	c.Binds = []Bind{{src, "/home", false}}
	text := describe(planOf(t, c).root, "/")
	if want := "/home dir 755\n/home/sandbox dir 755 covered\n/home/u = " + src + "/u\n"; !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
	c.Binds[0].Writable = true
	if _, err := newPlan(c, func(*source) {}); err == nil || !strings.Contains(err.Error(), "make it there first") {
		t.Errorf("%v", err)
	}
}

// An unfolded directory gives nobody more than what it stands for.
func TestUnfoldedDirectoryKeepsItsAccess(t *testing.T) {
	asRoot(t)
	dir := ownedDir(t, 1234, 5678)
	for _, test := range []struct {
		as             ownerView
		mode           os.FileMode
		uid, gid       uint32
		wantMode       uint32
		wantUID, wantG uint32
	}{
		{asNobody, 0o700, 0, 0, 0o000, 0, 0},
		{asNobody, 0o755, 0, 0, 0o555, 0, 0},
		{asNobody, 0o751, 0, 0, 0o111, 0, 0},
		{asOnDisk, 0o750, 0, 0, 0o750, 1234, 5678},
		{asUser, 0o750, 1234, 5678, 0o750, 1000, 1000},
		{asUser, 0o750, 1, 5678, 0o050, 0, 1000},
		{asUser, 0o705, 1234, 1, 0o755, 1000, 0},
	} {
		if err := os.Chmod(dir, test.mode); err != nil {
			t.Fatal(err)
		}
		s, err := openSource(dir, false, test.as, &hostpaths.Rules{})
		if err != nil {
			t.Fatal(err)
		}
		s.uid, s.gid = test.uid, test.gid
		mode, uid, gid, err := s.access(testUser)
		s.close()
		if err != nil || mode != test.wantMode || uid != test.wantUID || gid != test.wantG {
			t.Errorf("%+v: %03o %d:%d, %v", test, mode, uid, gid, err)
		}
	}
}

func TestMissingPrefix(t *testing.T) {
	c := testConfig()
	c.Prefixes = []string{t.TempDir() + "/none"}
	if _, err := newPlan(c, func(*source) {}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
