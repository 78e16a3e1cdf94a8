package rootfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// TestMain holds that no test leaves a descriptor or a mount.
func TestMain(m *testing.M) { os.Exit(testhost.RunMounting(m)) }

// asRoot skips where mounts cannot be made.
func asRoot(t testing.TB) { t.Helper(); testhost.NeedRoot(t, "mounts are made") }

const testBase = 1 << 20

var testUser = User{UID: 1000, GID: 1000, Home: "/home/sandbox"}

// testConfig is a root with the mount points a sandbox has.
func testConfig() Config {
	return Config{
		User: testUser, Hostname: "box", NameServer: "192.0.2.53", IDBase: testBase,
		MountPoints: []string{"/proc", "/sys", "/dev", "/tmp", "/run", "/home/sandbox", "/var/tmp"},
	}
}

// mountAt mounts in the private namespace until the test ends.
func mountAt(t testing.TB, fsType, dir, data string) {
	t.Helper()
	if err := unix.Mount(fsType, dir, fsType, 0, data); err != nil {
		t.Fatalf("mount %s on %s: %v", fsType, dir, err)
	}
	unmountAfter(t, dir)
}

// bindAt makes a directory a mount point, of itself.
func bindAt(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("bind %s: %v", dir, err)
	}
	unmountAfter(t, dir)
}

func unmountAfter(t testing.TB, dir string) {
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// stage is an empty directory to mount on. It is unmounted and removed without
// recursion.
func stage(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rootfs-stage-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func open(t testing.TB, cfg Config) *Root {
	t.Helper()
	r, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// mounted opens and mounts a root in a private namespace.
func mounted(t testing.TB, cfg Config) (*Root, Mounted) {
	t.Helper()
	r := open(t, cfg)
	m, err := r.Mount(stage(t))
	if err != nil {
		t.Fatal(err)
	}
	return r, m
}

// inside runs a shell line as a user of the sandbox, in its user namespace and
// with its root.
func inside(t testing.TB, r *Root, root string, uid uint32, line string) string {
	t.Helper()
	out, err := insideErr(r, root, uid, line)
	if err != nil {
		t.Errorf("inside, %s: %v\n%s", line, err, out)
	}
	return out
}

func insideErr(r *Root, root string, uid uint32, line string) (string, error) {
	cmd := exec.Command("/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", line)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: r.ids.Map().UIDs, GidMappings: r.ids.Map().GIDs, GidMappingsEnableSetgroups: true,
		Chroot:     root,
		Credential: &syscall.Credential{Uid: uid, Gid: uid},
	}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func ownerOf(t testing.TB, path string) userns.Owner {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return own(st.Uid, st.Gid)
}

// own is an owner on the host.
func own(uid, gid uint32) userns.Owner { return userns.Owner{UID: uid, GID: gid} }

// ownedDir is a directory, searchable from outside, of an owner.
func ownedDir(t testing.TB, uid, gid int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir
}
