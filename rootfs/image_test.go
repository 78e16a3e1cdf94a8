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
)

// writableConfig is a root from an image that takes writes, with the host's programs as a bind. The image is hostile: it
// has links and files at places of the sandbox's own, a device, and a top that is closed to users.
func writableConfig(t *testing.T) Config {
	t.Helper()
	c := overlayConfig(t)
	c.Image, c.Writable = testStore(t), true
	c.Binds = []Bind{{Source: "/usr", Target: "/usr"}}
	top := "/proc/self/fd/" + strconv.Itoa(int(c.Image.Fd()))
	for _, name := range []string{"etc/mark", "etc/hosts", "srv/file", "srv/gone", "sys"} {
		testhost.WriteFile(t, filepath.Join(top, name), name+"\n")
	}
	for name, to := range map[string]string{"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "proc": "etc", "tmp": "srv", "dev": "/srv"} {
		testhost.Symlink(t, to, filepath.Join(top, name))
	}
	err := errors.Join(
		os.Chmod(top+"/srv", 0o777), os.Lchown(top+"/srv/file", 33, 44), os.Chmod(top+"/srv/file", 0o666|os.ModeSetuid),
		unix.Mknod(top+"/srv/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.Chmod(top+"/srv/null", 0o666),
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTheRootOfAnImageTakesWrites(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		t.Run(map[bool]string{false: "ids of the kernel", true: "ids of the inside"}[mapped], func(t *testing.T) {
			testhost.PrivateMounts(t)
			c := writableConfig(t)
			c.StoreMapped = mapped
			c.Private, c.Home = []string{"/srv/gone"}, "/etc" // of the host, and not of the image
			r, m := overlaidRoot(t, c)
			got := inside(t, r, m.Path, 0, "cd / && mkdir -p new/dir && cat srv/gone etc/mark && rm srv/gone && stat -c %u:%g:%a . srv/file && echo more >>srv/file && ls -A /proc /dev /sys")
			if want := "srv/gone\netc/mark\n0:0:755\n33:44:4666\n/dev:\n\n/proc:\n\n/sys:"; got != want {
				t.Errorf("inside: %q, want %q", got, want)
			}
			if got := inside(t, r, m.Path, 1000, "cat /etc/hosts; echo x >/tmp/x; echo x >/home/sandbox/x; cat /srv/file"); !strings.Contains(got, "box") || !strings.HasSuffix(got, "srv/file\nmore") {
				t.Errorf("inside, a user has %q", got)
			}
			if got, err := insideErr(r, m.Path, 0, "echo x >/srv/null"); err == nil || !strings.Contains(got, "Permission denied") {
				t.Errorf("a device of the image: %q, %v", got, err)
			}
			layer := "/proc/thread-self/fd/" + strconv.Itoa(int(m.Store.Fd())) + "/layer/0/data"
			if got, want := strings.Join(names(t, layer), " "), "new srv"; got != want {
				t.Errorf("in the layer there are %s, want %s", got, want)
			}
			if got, want := strings.Join(names(t, layer+"/srv"), " "), "file gone"; got != want {
				t.Errorf("in the layer's srv there are %s, want %s", got, want)
			}
			if flags := mountFlags(t, m.Path); flags&unix.ST_NOSUID == 0 || flags&unix.ST_NODEV == 0 {
				t.Errorf("the root's mount has the flags %x", flags)
			}
			trees := r.Trees()
			if len(trees) != 1 || trees[0].Path != "/" || !trees[0].Image || !trees[0].OnDisk || trees[0].Device != 0 || trees[0].Inode != 0 {
				t.Errorf("trees: %+v", trees)
			}
			if text, err := os.ReadFile("/proc/self/fd/" + strconv.Itoa(int(c.Image.Fd())) + "/srv/file"); err != nil || string(text) != "srv/file\n" {
				t.Errorf("the image has %q, %v", text, err)
			}
		})
	}
}

// A later overlay of the image needs the mount points that the image lacks.
func TestMountPointsOfAnImageStayInTheStore(t *testing.T) {
	testhost.PrivateMounts(t)
	_, m := overlaidRoot(t, writableConfig(t))
	image := Tree{Image: true}
	points, err := OpenPoints(m.Store, image)
	if err != nil {
		t.Fatal(err)
	}
	defer points.Close()
	all, err := points.Readdirnames(-1)
	if err != nil || len(all) == 0 {
		t.Fatalf("%q, %v", all, err)
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "home/sandbox", "usr", "workspace"} {
		if info, err := os.Stat(filepath.Join("/proc/self/fd", strconv.Itoa(int(points.Fd())), name)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join("/proc/self/fd", strconv.Itoa(int(points.Fd())), "etc")); err == nil {
		t.Error("a directory that the image has is a mount point of the runtime's")
	}
	none, err := OpenPoints(testStore(t), image)
	if none != nil || err != nil {
		t.Errorf("in an empty store: %v, %v", none, err)
	}
}

func TestWritableRootsThatAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"only the root of an image": func(c *Config) { c.Image = nil },
		"need a store":              func(c *Config) { c.Store, c.Areas = nil, nil },
	} {
		c := writableConfig(t)
		change(&c)
		r, err := Open(c)
		if err == nil {
			r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
