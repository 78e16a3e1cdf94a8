package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newImageRoots is a host whose sandboxes can have images as roots.
func newImageRoots(t *testing.T) *imageHost {
	t.Helper()
	reason := testhost.LinuxBefore(t, 6, 12)
	if reason != "" {
		reason += ": it mounts no EROFS from a file"
	}
	need(t, peers(), reason)
	return newImageHost(t)
}

// run is a command with sandboxes of the host's state and images.
func (h *imageHost) run(args ...string) result {
	h.t.Helper()
	cmd := exec.Command(binary(h.t), append([]string{"--root", h.root, "--data", h.data}, args...)...)
	cmd.Env = h.env
	return run(h.t, cmd)
}

// uses are the files of the store about uses of images.
func (h *imageHost) uses() []string {
	h.t.Helper()
	all, err := filepath.Glob(filepath.Join(h.data, "images/users/*/uses/*"))
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// programs makes the tree of an image with a shell.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "bin"), 0o755), os.MkdirAll(filepath.Join(dir, "etc"), 0o755), os.MkdirAll(filepath.Join(dir, "srv/data"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, peer("bin/busybox"), filepath.Join(dir, "bin/busybox"))
	for _, name := range []string{"sh", "id", "cat", "ls", "pwd", "env", "touch", "true"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(dir, "etc/passwd"), "root:x:0:0::/:/bin/sh\nweb:x:33:44::/srv:/bin/sh\n")
	writeFile(t, filepath.Join(dir, "etc/group"), "web:x:44:\ndata:x:55:web\n")
	return dir
}

// saved writes an image of the tree with a config, in the form of docker save.
func saved(t *testing.T, tree string, config any) string {
	t.Helper()
	tar := exec.Command("tar", "--owner=0", "--group=0", "-C", tree, "-c", ".")
	layer, err := tar.Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	writeFile(t, file, string(savedImage(t, "app:latest", config, layer)))
	return file
}

// The settings of an image hold where the flags say nothing, and the sandbox cannot write to the image.
func TestImagesAreRoots(t *testing.T) {
	h := newImageRoots(t)
	h.good("import", "--name", "app", "-q", saved(t, programs(t), map[string]any{
		"User": "web", "Env": []string{"COLOUR=red", "PATH=/bin"}, "WorkingDir": "/srv", "Volumes": map[string]any{"/srv/data": map[string]any{}},
		"Entrypoint": []string{"/bin/sh", "-c"}, "Cmd": []string{"id; pwd; echo $COLOUR"}, "Labels": map[string]string{"io.privileged": "true"},
	}))
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "uid=33(web) gid=44(web) groups=55(data)\n/srv\nred\n"},
		{[]string{"--", "id -u; touch /srv/data/new && ls /srv/data"}, "33\nnew\n"},
		{[]string{"--user", "7:8", "--env", "COLOUR=blue", "--cwd", "/etc", "--", "id -u; id -g; pwd; echo $COLOUR"}, "7\n8\n/etc\nblue\n"},
		{[]string{"--user", "root", "--", "id -u; touch /etc/new 2>&1; cat /proc/self/status | busybox grep CapEff"}, "0\ntouch: /etc/new: Read-only file system\nCapEff:\t0000000000000000\n"},
		{[]string{"--hostname", "mine", "--", "cat /etc/hostname; busybox wc -l </etc/resolv.conf; ls /usr 2>&1"}, "mine\n1\nls: /usr: No such file or directory\n"},
	} {
		if got := h.run(append([]string{"do", "--image", "app"}, c.args...)...); got.code != 0 && c.args != nil && !strings.Contains(c.want, "No such") || got.stdout != c.want {
			t.Errorf("%q: %+v, want %q", c.args, got, c.want)
		}
	}
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses after the sandboxes have ended: %q", left)
	}
}

// As in Docker, a number alone has the groups of the user with this id, else the group 0.
func TestUserOfAnImageByNumber(t *testing.T) {
	h := newImageRoots(t)
	plain, linked, outside := programs(t), programs(t), programs(t)
	for dir, target := range map[string]string{linked: "/files", outside: "../../../../etc"} {
		if err := errors.Join(os.Rename(filepath.Join(dir, "etc"), filepath.Join(dir, "files")), os.Symlink(target, filepath.Join(dir, "etc"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ tree, user, want string }{
		{plain, "33", "33 44 44 55\n"}, {plain, "33:7", "33 7 7\n"}, {plain, "1001", "1001 0 0\n"},
		{linked, "33", "33 44 44 55\n"}, {linked, "web:data", "33 55 55\n"}, {outside, "33:7", "33 7 7\n"},
	} {
		h.good("import", "--name", "app", "-q", saved(t, c.tree, map[string]any{"User": c.user}))
		if got := h.run("do", "--image", "app", "--", "sh", "-c", "echo $(id -u) $(id -g) $(id -G)"); got.stdout != c.want {
			t.Errorf("%s: %+v, want %q", c.user, got, c.want)
		}
	}
	h.good("import", "--name", "app", "-q", saved(t, outside, map[string]any{"User": "33"}))
	if got := h.run("do", "--image", "app", "--", "id"); got.code == 0 || !strings.Contains(got.stderr, "use ids, as UID:GID") {
		t.Errorf("a file that is a link to itself: %+v", got)
	}
}

func TestASandboxKeepsItsImage(t *testing.T) {
	h := newImageRoots(t)
	h.good("import", "--name", "app", "-q", programs(t))
	var info spec.Info
	decode(t, h.run("up", "--json", "--image", "app", "box").stdout, &info)
	if info.Config.Image != "app" {
		t.Errorf("%+v", info)
	}
	h.bad("in use by sandbox box; first remove these with down or snapshot --remove, or run prune if", "rm", "app")
	if got := h.run("exec", "box", "ls", "/bin/busybox"); got.stdout != "/bin/busybox\n" {
		t.Errorf("%+v", got)
	}
	if got := h.run("down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	h.good("rm", "app")
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses: %q", left)
	}
}

func TestSandboxesOfAnImageAtOnce(t *testing.T) {
	h := newImageRoots(t)
	h.good("import", "--name", "app", "-q", programs(t))
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got := h.run("do", "--image", "app", "--", "id", "-u"); got.stdout != "1000\n" {
				t.Errorf("%+v", got)
			}
		})
	}
	all.Wait()
	h.good("rm", "app")
}

// A sandbox that is not made leaves no use of its image.
func TestImagesThatAreNoRoots(t *testing.T) {
	h := newImageRoots(t)
	h.good("import", "--name", "app", "-q", programs(t))
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"no such image", []string{"--image", "other", "--pull", "never", "--", "id"}},
		{"no such name in /etc/passwd of the image", []string{"--image", "app", "--user", "nobody", "--", "id"}},
		{"the image has no command", []string{"--image", "app"}},
		{"leave out the image or the root directory", []string{"--image", "app", "--rootfs", "/", "--", "id"}},
		{"leave out the image or the overlay", []string{"--image", "app", "--overlay", "/", "--", "id"}},
		{"first run: image import oci:layout --name NAME", []string{"--image", "oci:layout", "--", "id"}},
		{"there is no image", []string{"--pull", "always", "--", "id"}},
		{"use always, missing or never", []string{"--image", "app", "--pull", "no", "--", "id"}},
		{"no sandbox with --local", []string{"--image", "app", "--local", "--", "id"}},
		{"not found", []string{"--image", "app", "--", "bash"}},
	} {
		wantFailure(t, h.run(append([]string{"do"}, c.args...)...), c.words)
	}
	if left := h.uses(); len(left) > 0 {
		t.Errorf("uses: %q", left)
	}
	h.good("rm", "app")
}
