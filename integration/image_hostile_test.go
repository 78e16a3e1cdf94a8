package integration

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A hostileImage is refused, or a sandbox of it stays inside.
type hostileImage struct {
	// source is what is imported. Without source it is an archive of a layer with busybox, and of layers.
	source func(t *testing.T) string
	layers [][]imageEntry
	// refused are words of the refusal, empty if the image is imported.
	refused string
	// script is run by busybox in a sandbox of the image, and prints want. Empty: the sandbox is refused in one line.
	script, want string
}

// trap is a directory of the host that hostile images aim at.
type trap struct {
	t    *testing.T
	path string
}

const trapped = "a secret of the host"

func newTrap(t *testing.T) trap {
	t.Helper()
	dir, err := os.MkdirTemp("/srv", "trap-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	writeFile(t, filepath.Join(dir, "secret"), trapped)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return trap{t, dir}
}

// check holds that nothing has touched the directory.
func (p trap) check() {
	p.t.Helper()
	entries, err := os.ReadDir(p.path)
	if err != nil || len(entries) != 1 || content(p.t, filepath.Join(p.path, "secret")) != trapped {
		p.t.Errorf("the host's directory has %v, %v", entries, err)
	}
}

// entriesOfHostileImages are images of layers that are archives in order.
func entriesOfHostileImages(t *testing.T, p trap) map[string]hostileImage {
	type layers = [][]imageEntry
	under := strings.TrimPrefix(p.path, "/")
	root := rootDevice(t)
	setuid := imageProgram(t, "raised/busybox", peer("bin/busybox")).withMode(0o6755)
	return map[string]hostileImage{
		"../":      {layers: layers{{imageFile("../../../../"+under+"/new", "inside")}}, script: "cat " + p.path + "/new; ls " + p.path, want: "insidenew\n"},
		"absolute": {layers: layers{{imageFile(p.path+"/secret", "inside")}}, script: "cat " + p.path + "/secret", want: "inside"},
		"below a link to the host": {layers: layers{{imageSymlink("escape", p.path), imageFile("escape/secret", "inside")}},
			script: "cat " + p.path + "/secret; readlink escape", want: "inside" + p.path + "\n"},
		"below a link of a lower layer": {layers: layers{{imageSymlink("escape", "../../.."+p.path)}, {imageFile("escape/new", "inside")}},
			script: "cat " + p.path + "/new", want: "inside"},
		"hard link to the host":              {layers: layers{{imageLink("stolen", p.path+"/secret")}}, refused: "no such file"},
		"hard link upwards":                  {layers: layers{{imageLink("stolen", "../../../.."+p.path+"/secret")}}, refused: "no such file"},
		"hard link below a link to the host": {layers: layers{{imageSymlink("escape", p.path), imageLink("stolen", "escape/secret")}}, refused: "no such file"},
		"devices": {layers: layers{{imageDevice("d/disk", tar.TypeBlock, root.major, root.minor), imageDevice("d/null", tar.TypeChar, 1, 3)}},
			script: "cd d; head -c 1 disk 2>&1; (echo x >null) 2>&1; test -b disk && test -c null && echo there",
			want:   "head: disk: Permission denied\nsh: can't create null: Permission denied\nthere\n"},
		"set-user-ID":                  {layers: layers{{setuid}}, script: "/raised/busybox grep -E '^(Uid|CapEff)' /proc/self/status", want: "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n"},
		"entry over a lower link":      {layers: layers{{imageDir("usr/lib"), imageSymlink("lib", "usr/lib")}, {imageFile("lib/x", "x")}}, script: "readlink lib; cat usr/lib/x", want: "usr/lib\nx"},
		"duplicates":                   {layers: layers{{imageFile("a", "1"), imageDir("d"), imageFile("a", "2")}}, script: "cat a", want: "2"},
		"whiteouts of nothing":         {layers: layers{{imageFile(".wh.none", ""), imageFile("no/such/.wh.file", "")}}, script: "ls -d none no/such/file 2>/dev/null; echo end", want: "end\n"},
		"whiteouts of own entries":     {layers: layers{{imageFile("own", "own"), imageFile(".wh.own", "")}}, script: "cat own", want: "own"},
		"whiteout of the parent":       {layers: layers{{imageFile("d/.wh...", "")}}, refused: "whiteout of no name"},
		"no entries of directories":    {layers: layers{{imageFile("a/b/c/d", "deep")}}, script: "cat a/b/c/d", want: "deep"},
		"name of 4,096 bytes":          {layers: layers{{imageFile(strings.Repeat("d/", 2047)+"nn", "")}}, refused: "longer than 4095"},
		"name of 4,096 letters":        {layers: layers{{imageFile(strings.Repeat("n", 4096), "")}}, refused: "longer than 4095"},
		"escapes of a terminal":        {layers: layers{{imageLink("\x1b[31mred\n", "none")}}, refused: "no such file"},
		"root as a link to the host":   {layers: layers{{imageSymlink("./", p.path)}}, refused: "root is not a directory"},
		"hidden attributes of overlay": {layers: layers{{overlayRedirect(p.path)}}, script: "ls redirected; echo end", want: "end\n"},
	}
}

// overlayRedirect is a directory with the attributes by which overlayfs finds other directories.
func overlayRedirect(path string) imageEntry {
	e := imageDir("redirected")
	e.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.redirect": path, "SCHILY.xattr.user.overlay.redirect": path}
	return e
}

type deviceNumbers struct{ major, minor int64 }

func rootDevice(t *testing.T) deviceNumbers {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		t.Fatal(err)
	}
	return deviceNumbers{int64(unix.Major(st.Dev)), int64(unix.Minor(st.Dev))}
}

// pointsOfHostileImages have something else in the place of the runtime's mount points.
func pointsOfHostileImages(p trap) map[string]hostileImage {
	all := map[string]hostileImage{}
	for _, point := range []string{"proc", "sys", "dev", "etc", "tmp", "workspace"} {
		for what, entry := range map[string]imageEntry{"link to the host": imageSymlink(point, p.path), "link upwards": imageSymlink(point, "../.."+p.path), "file": imageFile(point, "no directory")} {
			all["/"+point+" as a "+what] = hostileImage{layers: [][]imageEntry{{entry}}, script: "cat /proc/1/root" + p.path + "/secret 2>/dev/null; cat " + p.path + "/secret 2>/dev/null"}
		}
	}
	return all
}

func TestHostileImages(t *testing.T) {
	testhost.Long(t)
	h, p := newImageRoots(t), newTrap(t)
	base := tarOfImage(t, imageProgram(t, "bin/busybox", peer("bin/busybox")), imageSymlink("bin/sh", "busybox"))
	for _, table := range []map[string]hostileImage{entriesOfHostileImages(t, p), pointsOfHostileImages(p), archivesOfHostileImages(), documentsOfHostileImages()} {
		for name, image := range table {
			t.Run(name, func(t *testing.T) {
				h := &imageHost{&sandboxes{t: t, root: h.root}, h.data, h.env}
				if image.source == nil {
					layers := [][]byte{base}
					for _, l := range image.layers {
						layers = append(layers, tarOfImage(t, l...))
					}
					image.source = func(t *testing.T) string { return dockerArchive(t, nil, layers...) }
				}
				h.meet(t, image)
				trap{t, p.path}.check()
			})
		}
	}
	h.good("prune")
	for _, kind := range []string{"layers", "images", "drafts", "users/0/uses"} {
		if left, err := filepath.Glob(filepath.Join(h.data, "images", kind, "*")); err != nil || len(left) != 0 {
			t.Errorf("%s: %q, %v", kind, left, err)
		}
	}
}

// meet imports a hostile image and runs a sandbox.
func (h *imageHost) meet(t *testing.T, image hostileImage) {
	h.t.Helper()
	const mostMemory, mostTime = 200 << 20, time.Minute
	source, begun := image.source(t), time.Now()
	got, bytes := measured(t, h.image("import", "--quiet", source, "--name", "hostile"))
	if took := time.Since(begun); took > mostTime || bytes > mostMemory {
		h.t.Errorf("took %v and %d bytes of memory", took, bytes)
	}
	if image.refused != "" {
		wantFailure(h.t, got, image.refused)
		if strings.ContainsAny(strings.TrimSpace(got.stderr), "\x1b\n") || len(got.stderr) > 1000 {
			h.t.Errorf("%q", got.stderr)
		}
		return
	}
	if got.code != 0 {
		h.t.Fatalf("%+v", got)
	}
	ran := h.run("do", "--image", "hostile", "--env", "PATH=/bin", "--cwd", "/", "--", "/bin/busybox", "sh", "-c", image.script)
	switch {
	case image.want != "" && ran.stdout != image.want:
		h.t.Errorf("%+v, want %q", ran, image.want)
	case image.want == "" && (strings.Contains(ran.stdout, trapped) || strings.Count(ran.stderr, "\n") > 1):
		h.t.Errorf("%+v", ran)
	}
	h.t.Logf("%d KiB; %.200q", bytes>>10, ran.stderr)
	h.good("rm", "hostile")
}

// A user with a rule has few bytes, so a bomb does not fill the disk.
func TestImageBombsEnd(t *testing.T) {
	h := newImageHost(t)
	l := h.listen(`{"peers":[{"user":4242,"images":"16m"}]}`)
	u := newImageUser(t, 4242, l)
	for kind, pack := range packings() {
		t.Run(kind, func(t *testing.T) {
			var bomb bytes.Buffer
			w := pack(t, &bomb)
			first := tarOfImage(t, imageFile("f", "x"))
			for _, part := range append([][]byte{first[:1024]}, repeated(make([]byte, 1<<20), 512)...) {
				if _, err := w.Write(part); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(openDir(t), "bomb")
			if err := os.WriteFile(path, bomb.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			got, memory := measured(t, u.image("import", "--quiet", "rootfs:"+path))
			wantFailure(t, got, "your images may have 16m")
			if memory > 200<<20 || bomb.Len() > 1<<20 {
				t.Errorf("%d bytes of memory for %d bytes", memory, bomb.Len())
			}
			if left := h.drafts(); len(left) != 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func repeated(b []byte, n int) (all [][]byte) {
	for range n {
		all = append(all, b)
	}
	return all
}
