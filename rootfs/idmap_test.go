package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

func TestWorkspaceFilesBelongToItsOwner(t *testing.T) {
	testhost.PrivateMounts(t)
	for _, who := range []userns.Owner{own(1234, 5678), own(0, 0), own(1000, 1000)} {
		ws := ownedDir(t, int(who.UID), int(who.GID))
		testhost.WriteFile(t, ws+"/theirs", "")
		if err := os.Chown(ws+"/theirs", 4321, 4321); err != nil {
			t.Fatal(err)
		}
		c := testConfig()
		c.Workspace = ws
		r, m := mounted(t, c)
		got := inside(t, r, m.Path, 1000, "cd /workspace; echo x > made; mkdir sub; stat -c %u:%g . made theirs")
		if got != "1000:1000\n1000:1000\n65534:65534" {
			t.Errorf("owners inside: %q", got)
		}
		for _, p := range []string{"/made", "/sub"} {
			if got := ownerOf(t, ws+p); got != who {
				t.Errorf("%s belongs to %v outside, want %v", p, got, who)
			}
		}
		if out, err := insideErr(r, m.Path, 7, "echo x > /workspace/other"); err == nil {
			t.Errorf("another user of the sandbox writes to the workspace: %s", out)
		}
		if n := r.Notes(); len(n) > 0 {
			t.Errorf("notes: %q", n)
		}
	}
}

func TestUserOfTheSandboxMayBeItsRoot(t *testing.T) {
	testhost.PrivateMounts(t)
	ws := ownedDir(t, 1234, 1234)
	c := testConfig()
	c.Workspace, c.User.UID, c.User.GID = ws, 0, 0
	r, m := mounted(t, c)
	inside(t, r, m.Path, 0, "echo x > /workspace/made")
	if got := ownerOf(t, ws+"/made"); got != own(1234, 1234) {
		t.Errorf("belongs to %v outside", got)
	}
}

func TestDirectoryShowsIdsAsOnDisk(t *testing.T) {
	testhost.PrivateMounts(t)
	c, dir := dirConfig(t)
	testhost.WriteFile(t, dir+"/usr/secret", "of 1234")
	for _, p := range []string{"/usr/secret", "/usr/lib"} {
		if err := os.Chown(dir+p, 1234, 99); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir+"/usr/secret", 0o600); err != nil {
		t.Fatal(err)
	}
	_, m := mounted(t, c)
	for p, want := range map[string]userns.Owner{
		"/usr": own(testBase, testBase), "/usr/lib": own(testBase+1234, testBase+99), "/usr/secret": own(testBase+1234, testBase+99),
	} {
		if got := ownerOf(t, m.Path+p); got != want {
			t.Errorf("%s belongs to %v, want %v", p, got, want)
		}
	}
	before := names(t, dir)
	if err := os.WriteFile(m.Path+"/usr/new", nil, 0o600); err == nil {
		t.Error("the directory can be written to")
	}
	if after := names(t, dir); !reflect.DeepEqual(before, after) {
		t.Errorf("the directory has changed from %q to %q", before, after)
	}
}

// What only the host's root may read stays so, whoever the sandbox's user is.
func TestHostTreesShowOnlyWhatEverybodyReads(t *testing.T) {
	testhost.PrivateMounts(t)
	prefix := filepath.Join(ownedDir(t, 0, 0), "prefix")
	testhost.WriteFile(t, prefix+"/public", "public")
	testhost.WriteFile(t, prefix+"/secret", "secret")
	if err := os.Chmod(prefix+"/secret", 0o600); err != nil {
		t.Fatal(err)
	}
	c := testConfig()
	c.MountPoints = nil // so that the prefix, below /tmp, is in the root
	c.Prefixes = []string{prefix}
	r, m := mounted(t, c)
	for _, uid := range []uint32{0, 1000} {
		if got := inside(t, r, m.Path, uid, "cat "+prefix+"/public"); got != "public" {
			t.Errorf("public: %q", got)
		}
		if out, err := insideErr(r, m.Path, uid, "cat "+prefix+"/secret"); err == nil {
			t.Errorf("user %d reads %q", uid, out)
		}
	}
}

// Binds were named by the user, and are readable as they are to their owner.
func TestBindShowsItsOwnerAsTheUser(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := ownedDir(t, 1234, 1234)
	testhost.WriteFile(t, dir+"/secret", "secret")
	if err := os.Chown(dir+"/secret", 1234, 1234); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir+"/secret", 0o600); err != nil {
		t.Fatal(err)
	}
	c := testConfig()
	c.Binds = []Bind{{dir, "/data", false}, {"/etc/shadow", "/shadow", false}, {dir + "/secret", "/rw", true}}
	r, m := mounted(t, c)
	if got := inside(t, r, m.Path, 1000, "cat /data/secret; test -r /shadow; echo more >> /rw"); got != "secret" {
		t.Errorf("%q", got)
	}
	if out, err := insideErr(r, m.Path, 1000, "echo x > /data/new"); err == nil {
		t.Errorf("a read-only bind is writable: %s", out)
	}
	if text, _ := os.ReadFile(dir + "/secret"); string(text) != "secretmore\n" {
		t.Errorf("written through a bind of a file: %q", text)
	}
}

// overlay mounts one with an owner: a file system that cannot be idmapped.
func mountOverlay(t *testing.T, dir string, who userns.Owner) string {
	t.Helper()
	at := filepath.Join(dir, "overlay")
	for _, d := range []string{"/lower", "/upper", "/work", "/overlay"} {
		if err := os.MkdirAll(dir+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir+"/upper", int(who.UID), int(who.GID)); err != nil {
		t.Fatal(err)
	}
	testhost.WriteFile(t, dir+"/lower/usr/file", "low")
	mountAt(t, "overlay", at, fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir))
	return at
}

func TestWorkspaceThatCannotBeIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := ownedDir(t, 0, 0)
	ws := mountOverlay(t, dir, own(1234, 5678))
	other := ownedDir(t, 77, 77)
	c := testConfig()
	c.Workspace = ws
	c.Binds = []Bind{{other, "/other", true}, {other, "/same", false}} // on a file system that can
	r, m := mounted(t, c)
	wantUID := []specs.LinuxIDMapping{
		{ContainerID: 0, HostID: testBase, Size: 1000},
		{ContainerID: 1000, HostID: 1234, Size: 1},
		{ContainerID: 1001, HostID: testBase + 1001, Size: IDCount - 1001},
	}
	if got := r.UIDMappings(); !reflect.DeepEqual(got, wantUID) {
		t.Errorf("uid map %+v", got)
	}
	if got := r.GIDMappings(); len(got) != 3 || got[1].HostID != 5678 {
		t.Errorf("gid map %+v", got)
	}
	if got := r.Notes(); len(got) != 1 || !strings.Contains(got[0], "overlay") || !strings.Contains(got[0], "is user 1234:5678 of the host") {
		t.Errorf("notes %q", got)
	}
	if got := inside(t, r, m.Path, 1000, "echo x > /workspace/made; echo x > /other/made; stat -c %u:%g /workspace/made /other/made /same"); got != "1000:1000\n1000:1000\n1000:1000" {
		t.Errorf("owners inside: %q", got)
	}
	if got := ownerOf(t, ws+"/made"); got != own(1234, 5678) {
		t.Errorf("belongs to %v outside", got)
	}
	if got := ownerOf(t, other+"/made"); got != own(77, 77) {
		t.Errorf("belongs to %v outside", got)
	}
}

// What was idmapped before it showed that another file system cannot be is
// idmapped anew.
func TestBindThatCannotBeIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	ws := ownedDir(t, 77, 77)
	c := testConfig()
	c.Workspace = ws
	c.Binds = []Bind{{mountOverlay(t, ownedDir(t, 0, 0), own(1234, 5678)), "/data/sub", true}}
	r, m := mounted(t, c)
	inside(t, r, m.Path, 1000, "echo x > /workspace/made; echo x > /data/sub/made")
	if got := ownerOf(t, ws+"/made"); got != own(77, 77) {
		t.Errorf("belongs to %v outside", got)
	}
}

func TestRootOwnedWorkspaceThatCannotBeIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	for _, who := range []userns.Owner{own(0, 0), own(0, 1000), own(1000, 0), own(testBase+5, 1000)} {
		c := testConfig()
		c.Workspace = mountOverlay(t, ownedDir(t, 0, 0), who)
		if err := refusal(t, c); !strings.Contains(err.Error(), "chown it") {
			t.Errorf("%v: %v", who, err)
		}
	}
}

func TestTwoOwnersThatCannotBeIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	a, b := mountOverlay(t, ownedDir(t, 0, 0), own(1234, 1234)), mountOverlay(t, ownedDir(t, 0, 0), own(1235, 1235))
	c := testConfig()
	c.Workspace, c.Binds = a, []Bind{{b, "/b", true}}
	if err := refusal(t, c); !strings.Contains(err.Error(), "one owner") {
		t.Error(err)
	}
	c.Binds[0].Writable = false
	r := open(t, c)
	if n := r.Notes(); len(n) != 2 || !strings.Contains(n[1], "nobody") {
		t.Errorf("notes %q", n)
	}
	c.Binds = []Bind{{a, "/b", true}}
	open(t, c)
}

func TestRootThatCannotBeIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	c := testConfig()
	c.Dir = mountOverlay(t, ownedDir(t, 0, 0), own(0, 0))
	testhost.WriteFile(t, c.Dir+"/etc/x", "")
	r, m := mounted(t, c)
	if n := r.Notes(); len(n) != 1 || !strings.Contains(n[0], c.Dir+" is on overlay") {
		t.Errorf("notes %q", n)
	}
	if text, err := os.ReadFile(m.Path + "/usr/file"); string(text) != "low" {
		t.Errorf("%q, %v", text, err)
	}
	if got := mountFlags(t, m.Path+"/usr"); got&unix.ST_RDONLY == 0 || got&unix.ST_NOSUID == 0 || got&unix.ST_NODEV == 0 {
		t.Errorf("flags %#x", got)
	}
}

func TestSubmountThatCannotBeIdmapped(t *testing.T) {
	testhost.PrivateMounts(t)
	ws := ownedDir(t, 1234, 1234)
	sub := mountOverlay(t, filepath.Join(ws, "sub"), own(1234, 1234))
	c := testConfig()
	c.Workspace = ws
	if err := refusal(t, c); !strings.Contains(err.Error(), sub+" (overlay)") {
		t.Error(err)
	}
	c.Workspace, c.Binds = "", []Bind{{ws, "/data", false}}
	r, m := mounted(t, c)
	if n := r.Notes(); len(n) != 1 || !strings.Contains(n[0], ws) {
		t.Errorf("notes %q", n)
	}
	if text, err := os.ReadFile(m.Path + "/data/sub/overlay/usr/file"); string(text) != "low" {
		t.Errorf("the mount below is empty: %q, %v", text, err)
	}
	if err := os.WriteFile(m.Path+"/data/sub/overlay/new", nil, 0o600); err == nil {
		t.Error("the mount below is writable")
	}
}

// A mount that is idmapped already cannot be again: its owner there counts.
func TestWorkspaceThatIsIdmappedAlready(t *testing.T) {
	testhost.PrivateMounts(t)
	ws := ownedDir(t, 0, 0)
	s, err := openSource(ws, true, asUser, &hostpaths.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var spaces userns.Namespaces
	defer spaces.Close()
	ns, err := spaces.Descriptor(mapFor(userns.IDs{Base: 40000}, s)) // root's files are those of 40000
	if err != nil {
		t.Fatal(err)
	}
	if err := s.clone(ns, true); err != nil {
		t.Fatal(err)
	}
	at := stage(t)
	if err := unix.MoveMount(s.tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	c := testConfig()
	c.Workspace = at
	r := open(t, c)
	if got := r.UIDMappings(); len(got) != 3 || got[1].HostID != 40000 {
		t.Errorf("uid map %+v", got)
	}
}

// The kernel counts what a sandbox takes for the owner of its user namespace.
func TestUserNamespaceBelongsToTheSandbox(t *testing.T) {
	asRoot(t)
	r := open(t, testConfig())
	users := r.TakeUserNamespace()
	defer users.Close()
	if again := r.TakeUserNamespace(); again != nil {
		t.Errorf("handed over twice: %v", again)
	}
	owner, err := unix.IoctlGetUint32(int(users.Fd()), unix.NS_GET_OWNER_UID)
	if err != nil || owner != testBase {
		t.Errorf("the owner is %d, want %d: %v", owner, testBase, err)
	}
}
