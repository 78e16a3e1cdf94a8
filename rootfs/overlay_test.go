package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// overlayConfig is a root with a store and the areas that a sandbox has.
func overlayConfig(t testing.TB) Config {
	t.Helper()
	c := testConfig()
	c.MountPoints = []string{"/run"}
	c.Areas = []Area{{"tmp", "/tmp", 0o1777}, {"home", "/home/sandbox", 0o755}, {"workspace", "/workspace", 0o755}}
	c.Store = testStore(t)
	return c
}

// testStore is a detached tmpfs.
func testStore(t testing.TB) *os.File {
	t.Helper()
	asRoot(t)
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	if err := errors.Join(unix.FsconfigSetString(fs, "mode", "0700"), unix.FsconfigCreate(fs)); err != nil {
		t.Fatal(err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(mnt), "store")
	t.Cleanup(func() { f.Close() })
	return f
}

// overlayTree is a directory of user 1234 with a secret.
func overlayTree(t *testing.T) string {
	t.Helper()
	dir := ownedDir(t, 1234, 1234)
	for _, name := range []string{"file", "dir/sub/file", ".ssh/id", "closed/file"} {
		testhost.WriteFile(t, dir+"/"+name, name+"\n")
	}
	if err := os.Chmod(dir+"/closed", 0o700); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 1234, 1234))
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPlanOfOverlays(t *testing.T) {
	dir, src := overlayTree(t), t.TempDir()
	testhost.WriteFile(t, src+"/file", "")
	c := overlayConfig(t)
	c.Overlays, c.Workspace, c.Areas = []string{dir}, dir, c.Areas[:2]
	c.Private = []string{dir + "/dir/sub"}
	c.Binds = []Bind{
		{Source: src, Target: dir + "/closed/new/place"},
		{Source: src + "/file", Target: dir + "/.ssh/id"},
		{Source: src, Target: "/tmp/in/there"},
		{Source: src, Target: "/workspace/also"},
	}
	text := describe(planOf(t, c).root, "/")
	text = strings.NewReplacer(dir, "TREE", src, "SRC").Replace(text)
	for _, want := range []string{`
TREE = TREE overlaid
TREE/.ssh hidden
TREE/.ssh/id = SRC/file
TREE/also = SRC
TREE/closed there
TREE/closed/new there
TREE/closed/new/place = SRC
TREE/dir there
TREE/dir/sub hidden
`, "\n/workspace as TREE\n", "/home/sandbox area home 755 1000\n", "/tmp area tmp 1777 0\n", "/tmp/in dir 755\n/tmp/in/there = SRC\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestOverlaysTakeAreasPlaces(t *testing.T) {
	c := overlayConfig(t)
	dir := overlayTree(t)
	p := planOf(t, overlayConfig(t))
	at, _, err := p.find("/tmp")
	if err != nil || at.node.kind != areaNode {
		t.Fatalf("%+v, %v", at, err)
	}
	s, err := p.sources.openNamed(p.sources.rules, dir, false, asUser)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.place("/tmp", &node{kind: bindNode, src: s}); err == nil {
		t.Error("a bind took the place of /tmp")
	}
	s.overlay = &overlay{}
	if err := p.place("/tmp", &node{kind: bindNode, src: s, named: true}); err != nil {
		t.Error(err)
	}
	if err := p.reserveAll(&c); err != nil || at.node.kind != bindNode {
		t.Errorf("%v; it is of kind %d", err, at.node.kind)
	}
}

// TestOverlayMount holds whose the files are inside, where the layers lie, and that
// what the root needs for itself is in none of them.
func TestOverlayMount(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		t.Run(map[bool]string{false: "ids of the kernel", true: "ids of the inside"}[mapped], func(t *testing.T) {
			testhost.PrivateMounts(t)
			dir, src := overlayTree(t), t.TempDir()
			c := overlayConfig(t)
			c.Overlays, c.StoreMapped = []string{dir}, mapped
			c.Binds = []Bind{{Source: src, Target: dir + "/closed/new/place"}}
			disk, diskErr := copyMount(int(c.Store.Fd())) // before it is mapped
			r, m := overlaidRoot(t, c)
			got := inside(t, r, m.Path, 1000, "cd "+dir+" && stat -c %u:%g:%a . file closed closed/new && ls -A .ssh && echo new >file && rm -r dir && mkdir dir && "+
				"echo x >closed/x && ls closed/new/place && cd /workspace && echo x >x && echo x >/tmp/x && stat -c %u /tmp x && touch /home/sandbox/x && cat "+dir+"/file")
			if want := "1000:1000:755\n1000:1000:644\n1000:1000:700\n0:0:755\n0\n1000\nnew"; got != want {
				t.Errorf("inside: %q, want %q", got, want)
			}
			top := "/proc/thread-self/fd/" + strconv.Itoa(int(m.Store.Fd()))
			user := own(testBase+1000, testBase+1000)
			for name, want := range map[string]userns.Owner{
				"layer/0/data": user, "layer/0/data/file": user, "layer/0/data/closed/x": user, "layer/0/data/dir": user,
				"area/workspace/x": user, "area/home": user, "area/tmp": own(testBase, testBase), "layer": own(0, 0), "area": own(0, 0),
			} {
				if got := ownerOf(t, top+"/"+name); got != want {
					t.Errorf("%s belongs to %v, want %v", name, got, want)
				}
			}
			for _, name := range []string{"layer/0/data/closed/new", "layer/0/data/.ssh"} {
				if _, err := os.Lstat(top + "/" + name); err == nil {
					t.Errorf("%s is a change", name)
				}
			}
			for _, name := range []string{"layer", "area", "layer/0"} {
				if st, err := os.Stat(top + "/" + name); err != nil || st.Mode().Perm() != 0o700 {
					t.Errorf("%s: %v, %v", name, st.Mode(), err)
				}
			}
			if diskErr == nil { // from Linux 6.15 on
				defer unix.Close(disk)
				want := user
				if mapped {
					want = own(1000, 1000)
				}
				if got := ownerOf(t, "/proc/thread-self/fd/"+strconv.Itoa(disk)+"/layer/0/data/file"); got != want {
					t.Errorf("in the store a file belongs to %v, want %v", got, want)
				}
			}
			trees := r.Trees()
			if len(trees) != 1 || trees[0].Path != dir || trees[0].UID != 1234 || trees[0].GID != 1234 || trees[0].OnDisk || trees[0].Layer != 0 {
				t.Errorf("trees: %+v", trees)
			}
		})
	}
}

// overlaidRoot is mounted, with the store's mount closed at the end.
func overlaidRoot(t *testing.T, c Config) (*Root, Mounted) {
	t.Helper()
	r, err := Open(c)
	if c.StoreMapped && errors.Is(err, unix.EINVAL) {
		t.Skip("needs idmapped mounts of tmpfs: Linux 6.3")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	m, err := r.Mount(stage(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Store.Close() })
	return r, m
}

func TestOverlaysThatAreRefused(t *testing.T) {
	dir := overlayTree(t)
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"without a store":   {func(c *Config) { c.Store = nil }, "need a store"},
		"relative":          {func(c *Config) { c.Overlays = []string{"dir"} }, "clean path"},
		"the whole, a peer": {func(c *Config) { c.Overlays, c.Peer = []string{"/"}, &Peer{UID: 1, GIDs: []uint32{1}} }, "only root"},
		"in what is hidden": {func(c *Config) { c.Home, c.Overlays = dir, []string{dir + "/.ssh"} }, "holds secrets"},
		"in the runtime's":  {func(c *Config) { c.Private = []string{dir}; c.Overlays = []string{dir + "/dir"} }, "own directory"},
		"bound over by a directory of the user's": {func(c *Config) {
			c.Binds = []Bind{{Source: "/usr", Target: filepath.Dir(dir)}}
			c.Overlays = []string{dir}
			c.Workspace = dir // placed first
		}, "hide another"},
	} {
		c := overlayConfig(t)
		c.Overlays = []string{dir}
		test.change(&c)
		r, err := Open(c)
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
