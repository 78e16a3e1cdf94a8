package integration

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A lister is a static program that describes each file below a directory.
type lister struct{ dir, path string }

func newLister(t *testing.T) lister {
	t.Helper()
	l := lister{dir: openDir(t)}
	l.path = filepath.Join(l.dir, "lister")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", l.path, "./testdata/lister")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if got := run(t, cmd); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	return l
}

// ofTheRuntime are the places of a sandbox that are not the image's.
var ofTheRuntime = []string{"/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp", "/workspace", "/home/sandbox",
	"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}

// decoded is the output of the lister.
func (l lister) decoded(t *testing.T, got result) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil || got.code != 0 {
		t.Fatalf("%v: code %d, %.1000s", err, got.code, got.stderr)
	}
	return all
}

// compare holds that a sandbox sees what umoci unpacks from a layout. The times of directories without an entry are
// those of umoci's work.
func (l lister) compare(t *testing.T, i *imageTools, h *imageHost, layout string) {
	t.Helper()
	begun, root := time.Now(), filepath.Join(i.t.TempDir(), "root")
	i.run("umoci", "raw", "unpack", "--image", layout, root)
	defer os.RemoveAll(root)
	want := l.decoded(t, run(t, exec.Command(l.path, append([]string{root}, ofTheRuntime...)...)))
	got := l.decoded(t, h.run(append([]string{"exec", "--user", "0", "box", "/workspace/lister", "/"}, ofTheRuntime...)...))
	// The runtime makes these, if the image has none, and owns the first one.
	delete(want, "/")
	for _, path := range []string{"/", "/etc", "/home", "/var"} {
		if _, ok := want[path]; !ok {
			delete(got, path)
		}
	}
	different := 0
	for path, description := range want {
		if got[path] == description || madeSince(got[path], description, begun) || isTopLink(path, got[path], description) || isClosed(got, path, description) {
			continue
		}
		if different++; different <= 10 {
			t.Errorf("%s\nsandbox: %q\numoci:   %q", path, got[path], description)
		}
	}
	for path, description := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s is too much: %s", path, description)
		}
	}
	t.Logf("%d files, %d differences", len(want), different)
}

// madeSince says that two files differ only in the time, which umoci's work set.
func madeSince(got, want string, begun time.Time) bool {
	ours, theirs := strings.Split(got, " "), strings.Split(want, " ")
	if len(ours) < 4 || len(theirs) < 4 || ours[3] != "0.000000000" || !strings.HasPrefix(want, "04") {
		return false
	}
	var second int64
	if _, err := fmt.Sscanf(theirs[3], "%d.", &second); err != nil || second < begun.Unix() {
		return false
	}
	return withTimeOf(got, want) == want
}

// withTimeOf is a description with the time of another one.
func withTimeOf(got, other string) string {
	ours, theirs := strings.Split(got, " "), strings.Split(other, " ")
	if len(ours) < 4 || len(theirs) < 4 {
		return got
	}
	ours[3] = theirs[3]
	return strings.Join(ours, " ")
}

// isTopLink says that a link directly in the root differs only in the time, as documented.
func isTopLink(path, got, want string) bool {
	return strings.Count(path, "/") == 1 && strings.HasPrefix(want, "12") && withTimeOf(got, want) == want
}

// isClosed says that root inside has no right to read the file, or a directory above: it has no capabilities.
func isClosed(got map[string]string, path, want string) bool {
	if description, ok := strings.CutSuffix(got[path], " unreadable"); ok {
		var mode, uid, gid int
		_, err := fmt.Sscanf(want, "%o %d:%d", &mode, &uid, &gid)
		return err == nil && strings.HasPrefix(want, description) && uid != 0 && mode&0o4 == 0
	}
	for above := filepath.Dir(path); above != "/"; above = filepath.Dir(above) {
		if strings.HasSuffix(got[above], " unreadable") || got[above] == "" {
			return strings.HasSuffix(got[above], " unreadable")
		}
	}
	return false
}

// realRoot is an image that users have.
type realRoot struct {
	// layout makes an image with the tag 1 in a layout.
	layout func(t *testing.T, i *imageTools) string
	// command prints want in a sandbox, and by exec, too.
	command []string
	want    string
}

func realRoots(l lister) map[string]realRoot {
	return map[string]realRoot{
		"Debian with Python and Node": {
			layout: func(t *testing.T, i *imageTools) string {
				path, err := exec.Command("./setup-debian", "-n").Output()
				if err != nil {
					t.Skip("no root of Debian: run integration/setup-debian")
				}
				return i.layoutOf(strings.TrimSpace(string(path)))
			},
			command: []string{"/bin/sh", "-c", `python3 -c "import os; print(6*7, os.getuid(), open('/etc/debian_version').read()[:2])" &&
				node -e "console.log(process.getuid(), require('fs').readFileSync('/etc/debian_version', 'utf8').slice(0, 2))"`},
			want: "42 1000 12\n1000 12\n",
		},
		"busybox by buildah": {
			layout:  func(t *testing.T, i *imageTools) string { return i.buildahLayout(programs(t)) },
			command: []string{"/bin/sh", "-c", "id -u; cat /etc/passwd | busybox wc -l"}, want: "1000\n2\n",
		},
		"a static program alone": {
			layout: func(t *testing.T, i *imageTools) string {
				path := filepath.Join(t.TempDir(), "root.tar")
				writeFile(t, path, string(tarOfImage(t, imageProgram(t, "lister", l.path))))
				return i.layoutOf(path)
			},
			command: []string{"/lister", "/home/sandbox"}, want: "",
		},
	}
}

// layoutOf is a layout with one layer, by umoci.
func (i *imageTools) layoutOf(layer string) string {
	i.t.Helper()
	layout := filepath.Join(i.t.TempDir(), "layout")
	i.run("umoci", "init", "--layout", layout)
	i.run("umoci", "new", "--image", layout+":1")
	i.run("umoci", "raw", "add-layer", "--image", layout+":1", layer)
	return layout + ":1"
}

// buildahLayout is a layout with a directory as the root, by buildah.
func (i *imageTools) buildahLayout(dir string) string {
	i.t.Helper()
	layout := filepath.Join(i.t.TempDir(), "layout")
	container := strings.TrimSpace(i.run("buildah", "from", "scratch"))
	i.run("buildah", "copy", "--quiet", container, dir, "/")
	i.run("buildah", "commit", "--quiet", "--rm", container, "oci:"+layout+":1")
	return layout + ":1"
}

// Sandboxes of images that users have see what umoci unpacks, path by path.
func TestRealRootsAreAsUmociUnpacksThem(t *testing.T) {
	testhost.Long(t)
	l := newLister(t)
	for name, root := range realRoots(l) {
		t.Run(name, func(t *testing.T) {
			h, i := newImageRoots(t), newImageTools(t)
			layout := root.layout(t, i)
			h.good("import", "--quiet", "--name", "real", "oci:"+layout)
			root.check(t, h.run(append([]string{"do", "--image", "real", "--"}, root.command...)...))
			if got := h.run("up", "--image", "real", "--workspace", l.dir, "box"); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			root.check(t, h.run(append([]string{"exec", "box"}, root.command...)...))
			l.compare(t, i, h, layout)
			if got := h.run("down", "box"); got.code != 0 {
				t.Errorf("%+v", got)
			}
			h.good("verify", "real")
			root.takesWrites(t, h)
			root.isInThePool(t, h)
			h.good("rm", "real")
		})
	}
}

// check holds that the root's command has succeeded.
func (r realRoot) check(t testing.TB, got result) {
	t.Helper()
	if got.code != 0 || r.want != "" && got.stdout != r.want {
		t.Errorf("%+v, want %q", got, r.want)
	}
}

// takesWrites holds that the layer of a writable root and its snapshot have a new file, and the image has not. The root
// can be without a shell.
func (r realRoot) takesWrites(t *testing.T, h *imageHost) {
	t.Helper()
	need(t, layersOfAnywhere(t))
	file, back := filepath.Join(openDir(t), "word"), filepath.Join(openDir(t), "back")
	writeFile(t, file, "written\n")
	good := func(args ...string) {
		t.Helper()
		if got := h.run(args...); got.code != 0 {
			t.Fatalf("%q: %+v", args, got)
		}
	}
	good("up", "--image", "real", "--writable", "--user", "0", "box")
	good("cp", file, "box:/new")
	wantChanges(t, h.changed("box"), "created /new")
	good("snapshot", "box", "snap")
	good("down", "box")
	good("up", "--from", "snap", "--user", "1000", "fork")
	r.check(t, h.run(append([]string{"exec", "fork"}, r.command...)...))
	wantChanges(t, h.changed("fork"), "created /new")
	good("cp", "fork:/new", back)
	if text := content(t, back); text != "written\n" {
		t.Errorf("the snapshot has %q", text)
	}
	good("down", "fork")
	good("snapshot", "--remove", "snap")
	h.good("verify", "real")
}

// isInThePool holds that the second sandbox of the root is claimed from a pool.
func (r realRoot) isInThePool(t *testing.T, h *imageHost) {
	t.Helper()
	p := h.pooled()
	do := append([]string{"do", "--image", "real", "--"}, r.command...)
	r.check(t, p.through(do...))
	p.ready(2)
	r.check(t, p.hit(do...))
	p.leave()
}

// An image of 127 layers is the sum of its layers, as umoci unpacks it.
func TestAnImageOf127Layers(t *testing.T) {
	testhost.Long(t)
	const layers = 127
	l, h, i := newLister(t), newImageRoots(t), newImageTools(t)
	var all [][]byte
	for n := range layers {
		name := fmt.Sprintf("layer-%d", n)
		entries := []imageEntry{imageFile("each", name), imageFile("d/"+name, name), imageFile(fmt.Sprintf("d/%d/file", n%5), name)}
		switch {
		case n == 0:
			entries = append(entries, imageProgram(t, "lister", l.path))
		case n%3 == 0:
			entries = append(entries, imageFile(fmt.Sprintf("d/.wh.layer-%d", n-1), ""))
		case n%10 == 1:
			entries = append(entries, imageFile(fmt.Sprintf("d/%d/.wh..wh..opq", n%5), ""))
		case n%7 == 0:
			entries = append(entries, imageLink(fmt.Sprintf("link-%d", n), "each"), imageDevice(fmt.Sprintf("d/fifo-%d", n), tar.TypeFifo, 0, 0))
		}
		all = append(all, tarOfImage(t, entries...))
	}
	archive := dockerArchive(t, nil, all...)
	layout := filepath.Join(t.TempDir(), "layout") + ":1"
	i.run("skopeo", "copy", "docker-archive:"+archive, "oci:"+layout)
	h.good("import", "--quiet", "--name", "deep", archive)
	h.good("import", "--quiet", "--name", "deep-oci", "oci:"+layout)
	if image := h.inspect("deep-oci"); len(image.Layers) != layers {
		t.Errorf("%d layers", len(image.Layers))
	}
	for _, image := range []string{"deep", "deep-oci"} {
		if got := h.run("up", "--image", image, "--workspace", l.dir, "box"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		l.compare(t, i, h, layout)
		if got := h.run("down", "box"); got.code != 0 {
			t.Errorf("%+v", got)
		}
	}
	h.good("verify")
}
