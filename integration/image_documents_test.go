package integration

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// packings compress a layer.
func packings() map[string]func(testing.TB, io.Writer) io.WriteCloser {
	return map[string]func(testing.TB, io.Writer) io.WriteCloser{
		"gzip": func(_ testing.TB, w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"zstd": func(t testing.TB, w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
			if err != nil {
				t.Fatal(err)
			}
			return z
		},
	}
}

func gzipOfImage(t testing.TB, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := packings()["gzip"](t, &b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// claimed is an archive of docker save whose layer is claimed to have a digest.
func claimed(t *testing.T, layer []byte, diffID string) string {
	t.Helper()
	manifest := []object{{"Config": "config.json", "Layers": []string{"layer.tar"}}}
	return imageArchive(t, tarOfImage(t, imageFile("layer.tar", string(layer)), imageFile("config.json", string(configOfImage(t, diffID))),
		imageFile("manifest.json", string(marshal(t, manifest)))))
}

// layersOfImage is an archive of docker save that has one layer many times.
func layersOfImage(n int) func(*testing.T) string {
	return func(t *testing.T) string {
		layer := tarOfImage(t, imageFile("f", "x"))
		var diffIDs, paths []string
		for range n {
			diffIDs, paths = append(diffIDs, digestOfImage(layer)), append(paths, "layer.tar")
		}
		manifest := []object{{"Config": "config.json", "Layers": paths}}
		return imageArchive(t, tarOfImage(t, imageFile("layer.tar", string(layer)), imageFile("config.json", string(configOfImage(t, diffIDs...))),
			imageFile("manifest.json", string(marshal(t, manifest)))))
	}
}

// archivesOfHostileImages have layers that are no archives, or other ones than they claim.
func archivesOfHostileImages() map[string]hostileImage {
	whole := func(t *testing.T) []byte {
		return tarOfImage(t, imageFile("a", strings.Repeat("text", 10_000)), imageFile("b", strings.Repeat("b", 5000)))
	}
	of := func(change func(tar []byte) (layer []byte, claim []byte)) func(*testing.T) string {
		return func(t *testing.T) string {
			layer, claim := change(whole(t))
			return claimed(t, layer, digestOfImage(claim))
		}
	}
	return map[string]hostileImage{
		"truncated":                 {source: of(func(b []byte) ([]byte, []byte) { return b[:3000], b }), refused: "another digest"},
		"truncated with its digest": {source: of(func(b []byte) ([]byte, []byte) { return b[:3000], b[:3000] }), refused: "unexpected EOF"},
		"truncated gzip": {source: func(t *testing.T) string {
			z := gzipOfImage(t, whole(t))
			return claimed(t, z[:len(z)/2], digestOfImage(whole(t)))
		}, refused: "unexpected EOF"},
		"corrupt gzip": {source: func(t *testing.T) string {
			z := gzipOfImage(t, whole(t))
			z[len(z)-6] ^= 1 // in the checksum
			return claimed(t, z, digestOfImage(whole(t)))
		}, refused: "checksum"},
		"lying digest":    {source: of(func(b []byte) ([]byte, []byte) { return b, []byte("another") }), refused: "digest"},
		"changed header":  {source: of(func(b []byte) ([]byte, []byte) { c := append([]byte("z"), b[1:]...); return c, c }), refused: "neither a tar archive"},
		"no archive":      {source: of(func([]byte) ([]byte, []byte) { c := []byte(strings.Repeat("hello ", 1000)); return c, c }), refused: "neither a tar archive"},
		"records of 1 GB": {source: of(func([]byte) ([]byte, []byte) { c := testhost.HugeHeader('x'); return c, c }), refused: "archive"},
		"a name of 1 GB":  {source: of(func([]byte) ([]byte, []byte) { c := testhost.HugeHeader('L'); return c, c }), refused: "archive"},
		"whole records of 1 GB": {source: func(t *testing.T) string {
			path := imageArchive(t, testhost.HugeHeader('x'))
			if err := os.Truncate(path, 1<<30+1<<20); err != nil {
				t.Fatal(err)
			}
			return path
		}, refused: "archive"},
		"sparse file of 2 GB": {source: func(t *testing.T) string { return sparseRoot(t, "2G") }, refused: "sparse"},
		"1,001 layers":        {source: layersOfImage(1001), refused: "1000"},
		"10,000 layers":       {source: layersOfImage(10_000), refused: "too many"},
	}
}

// sparseRoot is the tar of a root with a file of holes.
func sparseRoot(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("sh", "-c", fmt.Sprintf("cd %s && mkdir root && truncate -s %s root/holes && tar --sparse -C root -cf root.tar .", dir, size)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "root.tar")
}

// A layoutOfImage is an OCI layout that a test changes before it is written.
type layoutOfImage struct {
	manifest, layer, config, index object
	blobs                          map[string][]byte
}

// layout writes a layout. change sees each document before its digest is made.
func layout(change func(l *layoutOfImage)) func(*testing.T) string {
	return func(t *testing.T) string {
		tar := tarOfImage(t, imageFile("f", "x"))
		l := &layoutOfImage{blobs: map[string][]byte{}}
		put := func(kind string, b []byte) object {
			digest := digestOfImage(b)
			l.blobs[strings.TrimPrefix(digest, "sha256:")] = b
			return object{"mediaType": "application/vnd.oci.image." + kind, "digest": digest, "size": len(b)}
		}
		l.layer, l.config = put("layer.v1.tar", tar), put("config.v1+json", configOfImage(t, digestOfImage(tar)))
		l.manifest = object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": l.config, "layers": []object{l.layer}}
		l.index = object{"schemaVersion": 2}
		change(l)
		l.index["manifests"] = []object{put("manifest.v1+json", marshal(t, l.manifest))}
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, b := range l.blobs {
			writeFile(t, filepath.Join(dir, "blobs/sha256", name), string(b))
		}
		writeFile(t, filepath.Join(dir, "index.json"), string(marshal(t, l.index)))
		writeFile(t, filepath.Join(dir, "oci-layout"), `{"imageLayoutVersion":"1.0.0"}`)
		return dir
	}
}

// documentsOfHostileImages are layouts with hostile documents.
func documentsOfHostileImages() map[string]hostileImage {
	blob := func(d object) string { return strings.TrimPrefix(fmt.Sprint(d["digest"]), "sha256:") }
	large := strings.Repeat("x", 5<<20)
	return map[string]hostileImage{
		"media type of a layer":    {source: layout(func(l *layoutOfImage) { l.layer["mediaType"] = "application/x-program" }), refused: "media type"},
		"encrypted layer":          {source: layout(func(l *layoutOfImage) { l.layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+encrypted" }), refused: "media type"},
		"media type of the config": {source: layout(func(l *layoutOfImage) { l.config["mediaType"] = "application/vnd.cncf.helm.config.v1+json" }), refused: "media type"},
		"layer with another blob":  {source: layout(func(l *layoutOfImage) { l.blobs[blob(l.layer)][600] ^= 1 }), refused: "digest"},
		"config with another blob": {source: layout(func(l *layoutOfImage) { l.blobs[blob(l.config)][3] ^= 1 }), refused: "digest"},
		"layer that is cut":        {source: layout(func(l *layoutOfImage) { l.blobs[blob(l.layer)] = l.blobs[blob(l.layer)][:700] }), refused: "bytes"},
		"digest that is a path":    {source: layout(func(l *layoutOfImage) { l.layer["digest"] = "sha256:../../../../etc/passwd" }), refused: "digest"},
		"digest of another kind":   {source: layout(func(l *layoutOfImage) { l.layer["digest"] = "md5:" + strings.Repeat("0", 32) }), refused: "digest"},
		"size below zero":          {source: layout(func(l *layoutOfImage) { l.layer["size"] = -1 }), refused: "size"},
		"large annotations":        {source: layout(func(l *layoutOfImage) { l.manifest["annotations"] = object{"a": large} }), refused: "4194304"},
		"manifest of 100 MB":       {source: func(t *testing.T) string { return withHugeManifest(t, false) }, refused: "4194304"},
		"index of 100 MB":          {source: func(t *testing.T) string { return withHugeManifest(t, true) }, refused: "4194304"},
		"1,001 manifests' layers": {source: layout(func(l *layoutOfImage) {
			l.manifest["layers"] = repeatedObject(l.layer, 1001)
		}), refused: "1000"},
	}
}

func repeatedObject(o object, n int) (all []object) {
	for range n {
		all = append(all, o)
	}
	return all
}

// withHugeManifest is a layout whose manifest, or index, is a file of 100 MB.
func withHugeManifest(t *testing.T, index bool) string {
	t.Helper()
	const size = 100 << 20
	dir := layout(func(*layoutOfImage) {})(t)
	if index {
		if err := os.Truncate(filepath.Join(dir, "index.json"), size); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	digest := strings.Repeat("ab", 32)
	if err := os.WriteFile(filepath.Join(dir, "blobs/sha256", digest), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "blobs/sha256", digest), size); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "index.json"), fmt.Sprintf(
		`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%d}]}`, digest, size))
	return dir
}
