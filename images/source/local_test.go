package source

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// layoutFiles are the files of a layout with one image for linux/amd64 per tag.
func layoutFiles(t *testing.T, images map[string][]byte) map[string]string {
	t.Helper()
	f := newFakeRegistry(t)
	index := document{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for tag, layer := range images {
		d := f.putImage(t, "", "amd64", layer)
		d.Annotations.RefName = tag
		index.Manifests = append(index.Manifests, d)
	}
	files := map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": string(mustJSON(t, index))}
	for digest, content := range f.objects {
		files[blobName(digest)] = string(content)
	}
	return files
}

func putLayout(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testhost.WriteFile(t, path, content)
	}
	return dir
}

func putFile(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	testhost.WriteFile(t, path, string(content))
	return path
}

func flatten(files map[string]string) []string {
	var all []string
	for name, content := range files {
		all = append(all, name, content)
	}
	return all
}

func zstded(t *testing.T, content []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(content, nil)
}

func TestLayoutIsRead(t *testing.T) {
	one, two := noise(t, 1, 1000), noise(t, 2, 1000)
	dir := putLayout(t, layoutFiles(t, map[string][]byte{"1": one, "2.0": two}))
	o := testOptions(t)
	mustRead(t, "oci:"+dir+":1", o, one)
	mustRead(t, "oci:"+dir+":2.0", o, two)
	refuses(t, "oci:"+dir, o, "several images; add one of the tags")
	refuses(t, "oci:"+dir+":3", o, `no image with the tag "3"`, "2.0")
	untagged := putLayout(t, layoutFiles(t, map[string][]byte{"": noise(t, 1, 1000)}))
	refuses(t, "oci:"+untagged+":3", o, `no image with the tag "3"; the layout has no tags: leave the tag out`)
	single := putLayout(t, layoutFiles(t, map[string][]byte{"x": one}))
	mustRead(t, "oci:"+single, o, one)
	o.Platform = "linux/arm64"
	refuses(t, "oci:"+single, o, "no image for linux/arm64; the platforms are linux/amd64: choose one with --platform")
	o.Platform = ""
	refuses(t, "oci:"+t.TempDir(), o, "not an OCI layout")
	refuses(t, "oci:/nonexistent", o, "no such file")
}

func TestHostileLayouts(t *testing.T) {
	layer := noise(t, 1, 1000)
	fresh := func() (map[string]string, string) {
		files := layoutFiles(t, map[string][]byte{"x": layer})
		return files, blobName(digestOf(gzipped(t, layer)))
	}
	o := testOptions(t)
	files, name := fresh()
	files[name] = strings.Replace(files[name], files[name][50:60], "0123456789", 1)
	refuses(t, "oci:"+putLayout(t, files), o, "another digest")
	files, name = fresh()
	files[name] += "x"
	refuses(t, "oci:"+putLayout(t, files), o, "bytes instead of")
	files, _ = fresh()
	files["oci-layout"] = `{"imageLayoutVersion":"2.0.0"}`
	refuses(t, "oci:"+putLayout(t, files), o, "1.0.0 is supported")
	files, _ = fresh()
	files["index.json"] = strings.Repeat(" ", maxManifest+1)
	refuses(t, "oci:"+putLayout(t, files), o, "at most 4194304")
	// Links out of the layout, and files that block.
	files, name = fresh()
	dir := putLayout(t, files)
	outside := putFile(t, []byte(files[name]))
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	testhost.Symlink(t, outside, filepath.Join(dir, name))
	refuses(t, "oci:"+dir, o, "path escapes")
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, "oci:"+dir, o, "not a regular file")
}

func TestArchivesAreRead(t *testing.T) {
	layer := noise(t, 1, 1000)
	diff := digestOf(layer)
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` + diff + `"]}}`
	docker := tarOf(t, "aa/layer.tar", string(layer), "c.json", config, "manifest.json", `[{"Config":"c.json","RepoTags":["a:1"],"Layers":["aa/layer.tar"]}]`)
	packed := tarOf(t, "layer", string(gzipped(t, layer)), "c.json", config, "manifest.json", `[{"Config":"c.json","Layers":["layer"]}]`)
	oci := tarOf(t, flatten(layoutFiles(t, map[string][]byte{"x": layer}))...)
	for name, test := range map[string]struct {
		kind    Kind
		content []byte
	}{"docker": {DockerArchive, docker}, "docker with a compressed layer": {DockerArchive, packed}, "oci": {LayoutArchive, oci}, "root": {Root, layer}} {
		for how, pack := range map[string]func([]byte) []byte{
			"plain": func(b []byte) []byte { return b },
			"gzip":  func(b []byte) []byte { return gzipped(t, b) },
			"zstd":  func(b []byte) []byte { return zstded(t, b) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				o := testOptions(t)
				content := pack(test.content)
				image := mustRead(t, string(test.kind)+":"+putFile(t, content), o, layer)
				if _, err := parseConfig(image.Config, 1); err != nil {
					t.Error(err)
				}
				if test.kind == Root && image.Layers[0].Size != int64(len(content)) {
					t.Error("the layer of the root is not the file")
				}
				o.Stdin = bytes.NewReader(content)
				mustRead(t, "-", o, layer)
				if left := cacheFiles(t, o.Cache); len(left) > 0 {
					t.Errorf("%q are left", left)
				}
			})
		}
	}
	o := testOptions(t)
	mustRead(t, "oci-archive:"+putFile(t, oci)+":x", o, layer)
	refuses(t, "oci-archive:"+putFile(t, oci)+":y", o, "no image with the tag")
	refuses(t, "-", o, "no standard input is given")
}

func TestFilesAreReadFromAPipe(t *testing.T) {
	layer := noise(t, 1, 1000)
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	go os.WriteFile(path, gzipped(t, layer), 0o600)
	mustRead(t, "rootfs:"+path, testOptions(t), layer)
}

func TestHostileArchives(t *testing.T) {
	layer := noise(t, 1, 1000)
	diff := digestOf(layer)
	config := `{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["` + diff + `"]}}`
	manifest := `[{"Config":"c.json","Layers":["layer.tar"]}]`
	many := make([]string, 0, 2*maxEntries+2)
	for range maxEntries + 1 {
		many = append(many, "x", "")
	}
	tests := map[string]struct {
		content []byte
		says    string
	}{
		"lying layer":      {tarOf(t, "layer.tar", string(noise(t, 2, 1000)), "c.json", config, "manifest.json", manifest), "another digest"},
		"missing layer":    {tarOf(t, "c.json", config, "manifest.json", manifest), "open layer.tar: file does not exist"},
		"path out":         {tarOf(t, "c.json", config, "manifest.json", `[{"Config":"../../../etc/passwd","Layers":[]}]`), "file does not exist"},
		"several images":   {tarOf(t, "c.json", config, "manifest.json", `[{"Config":"c.json","RepoTags":["a:1"]},{"Config":"c.json","RepoTags":["b:2"]}]`), "2 images (a:1, b:2); save one image"},
		"no images":        {tarOf(t, "manifest.json", `[]`), "0 images"},
		"no manifest":      {tarOf(t, "c.json", config), "not an archive of docker save"},
		"large manifest":   {tarOf(t, "manifest.json", strings.Repeat(" ", maxManifest+1)), "at most 4194304"},
		"large config":     {tarOf(t, "c.json", strings.Repeat(" ", maxConfig+1), "manifest.json", manifest), "at most 4194304"},
		"too many entries": {tarOf(t, many...), "more than 20000 entries"},
		"no archive":       {bytes.Repeat([]byte("x"), 2000), "not a tar archive"},
		"empty file":       {nil, "not an archive of docker save"},
		"broken gzip":      {gzipped(t, layer)[:500], "unexpected EOF"},
		"links in a ring":  {linkRing(t), "too many links"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			refuses(t, "docker-archive:"+putFile(t, test.content), testOptions(t), test.says)
		})
	}
	bomb := make([]byte, 20<<20)
	for name, content := range map[string][]byte{"gzip bomb": gzipped(t, bomb), "zstd bomb": zstded(t, bomb), "large file": bomb} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			o.MaxBytes = 10 << 20
			refuses(t, "rootfs:"+putFile(t, content), o, "more than 10485760 bytes")
			o.Stdin = bytes.NewReader(content)
			refuses(t, "-", o, "more than 10485760 bytes")
		})
	}
	refuses(t, "rootfs:"+putFile(t, []byte("no tar")), testOptions(t), "neither a tar archive nor compressed")
	refuses(t, "rootfs:"+putFile(t, nil), testOptions(t), "not a tar archive")
	refuses(t, "rootfs:"+t.TempDir(), testOptions(t), "directory")
}

func linkRing(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, to := range map[string]string{"manifest.json": "b", "b": "manifest.json"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A docker archive of several layers with the same content has links.
func TestLinkedLayersOfDocker(t *testing.T) {
	layer := noise(t, 1, 1000)
	diff := `"` + digestOf(layer) + `"`
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range []struct{ name, link, text string }{{"a/layer.tar", "", string(layer)}, {"b/layer.tar", "../a/layer.tar", ""},
		{"c.json", "", `{"rootfs":{"type":"layers","diff_ids":[` + diff + "," + diff + `]}}`},
		{"manifest.json", "", `[{"Config":"c.json","Layers":["a/layer.tar","b/layer.tar"]}]`}} {
		h := &tar.Header{Name: e.name, Linkname: e.link, Size: int64(len(e.text)), Mode: 0o644, Typeflag: tar.TypeReg}
		if e.link != "" {
			h.Typeflag = tar.TypeSymlink
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	mustRead(t, "docker-archive:"+putFile(t, b.Bytes()), testOptions(t), layer, layer)
}
