package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
)

// impatient makes a test of failures short. Its limits are long enough for a busy machine.
var impatient = patience{answer: time.Minute, stall: time.Minute, first: time.Millisecond, longest: 3 * time.Second}

// shortStall is the time limit of tests with servers that stall.
const shortStall = 300 * time.Millisecond

// fakeRegistry is a registry whose answers a test can change.
type fakeRegistry struct {
	server *httptest.Server
	host   string

	mu sync.Mutex
	// objects are blobs and manifests by digest, types the media types of manifests, and tags digests.
	objects map[string][]byte
	types   map[string]types.MediaType
	tags    map[string]string
	// asked are the requests, and sent are the bytes of blobs.
	asked []string
	sent  int64
	// hook answers a request, or returns false.
	hook func(w http.ResponseWriter, r *http.Request) bool
}

func newFakeRegistry(t *testing.T) *fakeRegistry {
	t.Helper()
	f := &fakeRegistry{objects: map[string][]byte{}, types: map[string]types.MediaType{}, tags: map[string]string{}}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	f.host = strings.TrimPrefix(f.server.URL, "http://")
	return f
}

func (f *fakeRegistry) ref() string { return f.host + "/some/image:tag" }

func (f *fakeRegistry) set(hook func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// count is the number of requests whose text has a part.
func (f *fakeRegistry) count(part string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, a := range f.asked {
		if strings.Contains(a, part) {
			n++
		}
	}
	return n
}

// bytesSent is the number of bytes of blobs that were sent.
func (f *fakeRegistry) bytesSent() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

func (f *fakeRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	hook := f.hook
	f.mu.Unlock()
	if hook != nil && hook(w, r) {
		return
	}
	f.answer(w, r)
}

// answer is the behaviour of an honest registry.
func (f *fakeRegistry) answer(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	parts := strings.Split(r.URL.Path, "/")
	id := parts[len(parts)-1]
	if tagged, ok := f.tags[id]; ok {
		id = tagged
	}
	content, ok := f.objects[id]
	mediaType := f.types[id]
	f.mu.Unlock()
	switch {
	case r.URL.Path == "/v2/":
		return
	case !ok:
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
		return
	case strings.Contains(r.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", string(mediaType))
		w.Header().Set("Docker-Content-Digest", id)
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		if r.Method == http.MethodGet {
			w.Write(content)
		}
		return
	}
	counted := &countingWriter{ResponseWriter: w}
	http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader(content))
	f.mu.Lock()
	f.sent += counted.n
	f.mu.Unlock()
}

type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

func (f *fakeRegistry) put(content []byte) descriptor {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := descriptor{Digest: digestOf(content), Size: int64(len(content))}
	f.objects[d.Digest] = content
	return d
}

func (f *fakeRegistry) putManifest(t *testing.T, doc any, mediaType types.MediaType, tag string) descriptor {
	t.Helper()
	text, ok := doc.([]byte)
	if !ok {
		text = mustJSON(t, doc)
	}
	d := f.put(text)
	d.MediaType = mediaType
	f.mu.Lock()
	defer f.mu.Unlock()
	f.types[d.Digest] = mediaType
	if tag != "" {
		f.tags[tag] = d.Digest
	}
	return d
}

// putImage stores an image for linux/ARCHITECTURE with compressed layers.
func (f *fakeRegistry) putImage(t *testing.T, tag, architecture string, layers ...[]byte) descriptor {
	t.Helper()
	doc := document{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	c := config{platform: platform{OS: "linux", Architecture: architecture}, RootFS: rootFS{Type: "layers"}}
	for _, l := range layers {
		d := f.put(gzipped(t, l))
		d.MediaType = types.OCILayer
		doc.Layers = append(doc.Layers, d)
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, digestOf(l))
	}
	d := f.put(mustJSON(t, c))
	d.MediaType = types.OCIConfigJSON
	doc.Config = &d
	return f.putManifest(t, doc, types.OCIManifestSchema1, tag)
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func gzipped(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tarOf is a tar archive of files by their names and contents.
func tarOf(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Size: int64(len(files[i+1])), Mode: 0o644, Format: tar.FormatPAX}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// noise is a layer that gzip cannot make smaller.
func noise(t *testing.T, seed uint64, size int) []byte {
	t.Helper()
	content := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{byte(seed)}).Read(content); err != nil {
		t.Fatal(err)
	}
	return tarOf(t, fmt.Sprintf("file%d", seed), string(content))
}

func testOptions(t *testing.T) Options {
	t.Helper()
	return Options{Platform: "linux/amd64", Cache: t.TempDir(), patience: impatient}
}

// readImage opens an image and reads all its layers.
func readImage(t *testing.T, reference string, o Options) (*Image, [][]byte, error) {
	t.Helper()
	image, err := Open(t.Context(), reference, o)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { image.Close() })
	var contents [][]byte
	for _, l := range image.Layers {
		content, err := readLayer(t.Context(), l)
		if err != nil {
			return image, contents, err
		}
		contents = append(contents, content)
	}
	return image, contents, image.Close()
}

func readLayer(ctx context.Context, l Layer) ([]byte, error) {
	r, err := l.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// mustRead reads an image whose uncompressed layers are known.
func mustRead(t *testing.T, reference string, o Options, layers ...[]byte) *Image {
	t.Helper()
	image, contents, err := readImage(t, reference, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(contents) != len(layers) {
		t.Fatalf("%d layers instead of %d", len(contents), len(layers))
	}
	for i, have := range contents {
		var plain bytes.Buffer
		if _, err := inflate.Copy(t.Context(), &plain, bytes.NewReader(have), 1<<30); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(plain.Bytes(), layers[i]) || image.Layers[i].DiffID != digestOf(layers[i]) {
			t.Errorf("layer %d has another content or DiffID", i)
		}
	}
	return image
}

// refuses opens and reads an image, and wants an error with all parts, in one line.
func refuses(t *testing.T, reference string, o Options, parts ...string) {
	t.Helper()
	_, _, err := readImage(t, reference, o)
	if err == nil {
		t.Fatalf("%s was read; an error with %q was expected", reference, parts)
	}
	t.Log(err)
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\x1b\x00") || len(err.Error()) > maxMessage+300 {
		t.Errorf("error %q is no line", err)
	}
}

func TestTagAndDigestAreRead(t *testing.T) {
	f := newFakeRegistry(t)
	low, high := noise(t, 1, 100_000), noise(t, 2, 10)
	d := f.putImage(t, "tag", "amd64", low, high)
	byTag := mustRead(t, f.ref(), testOptions(t), low, high)
	if byTag.Digest != d.Digest || byTag.Resolved != d.Digest || byTag.Reference != f.ref() {
		t.Errorf("%+v", byTag)
	}
	mustRead(t, f.host+"/some/image@"+d.Digest, testOptions(t), low, high)
	mustRead(t, f.host+"/some/image:other@"+d.Digest, testOptions(t), low, high)
	refuses(t, f.host+"/some/image:other", testOptions(t), "404", "manifest unknown", "; check the name, and the tag or digest")
}

func TestHostsOfOptionsAreChecked(t *testing.T) {
	f := newFakeRegistry(t)
	layer := noise(t, 1, 10)
	f.putImage(t, "tag", "amd64", layer)
	for _, wrong := range []string{"", "a b", "http://registry.test", "registry.test/team"} {
		o := testOptions(t)
		o.PlainHTTP = []string{wrong}
		refuses(t, f.ref(), o, "use HOST[:PORT]")
		o.PlainHTTP, o.TokenHosts = nil, []string{wrong}
		refuses(t, f.ref(), o, "use HOST[:PORT]")
	}
	o := testOptions(t)
	o.PlainHTTP, o.TokenHosts = []string{"registry.test:5000", "[::1]:5000"}, []string{"127.0.0.1"}
	mustRead(t, f.ref(), o, layer)
}

func TestPlatformIsChosen(t *testing.T) {
	f := newFakeRegistry(t)
	amd, arm := noise(t, 1, 10), noise(t, 2, 10)
	index := document{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, one := range []struct {
		platform
		layer []byte
	}{{platform{OS: "unknown", Architecture: "unknown"}, nil}, {platform{OS: "linux", Architecture: "amd64"}, amd},
		{platform{OS: "linux", Architecture: "arm", Variant: "v6"}, amd}, {platform{OS: "linux", Architecture: "arm", Variant: "v7"}, arm}} {
		d := f.putImage(t, "", one.Architecture, one.layer)
		d.Platform = &one.platform
		index.Manifests = append(index.Manifests, d)
	}
	d := f.putManifest(t, index, types.OCIImageIndex, "tag")
	o := testOptions(t)
	image := mustRead(t, f.ref(), o, amd)
	if image.Resolved != d.Digest || image.Digest != index.Manifests[1].Digest {
		t.Errorf("%+v", image)
	}
	for name, layer := range map[string][]byte{"linux/arm": arm, "linux/arm/v6": amd} {
		o.Platform = name
		mustRead(t, f.ref(), o, layer)
	}
	o.Platform = "linux/riscv64"
	refuses(t, f.ref(), o, "linux/riscv64; the platforms are linux/amd64, linux/arm/v6, linux/arm/v7")
	o.Platform = "windows/amd64"
	refuses(t, f.ref(), o, "must be linux")
	o.Platform = "linux"
	refuses(t, f.ref(), o, "OS/ARCHITECTURE")
}

// A pull waits for a dead mirror once, however many layers the image has.
func TestDeadMirrorIsAskedOnce(t *testing.T) {
	asked := func(layers int) int {
		t.Helper()
		f, mirror := newFakeRegistry(t), newFakeRegistry(t)
		mirror.set(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
		var all [][]byte
		for n := range layers {
			all = append(all, noise(t, uint64(n), 1000))
		}
		f.putImage(t, "tag", "amd64", all...)
		o := testOptions(t)
		o.Mirrors = map[string][]string{f.host: {mirror.host}}
		mustRead(t, f.ref(), o, all...)
		return mirror.count("")
	}
	if one, many := asked(1), asked(5); one == 0 || one != many {
		t.Errorf("asked %d times for one layer, %d times for five", one, many)
	}
}

func TestProgressTellsEachLayer(t *testing.T) {
	f := newFakeRegistry(t)
	layers := [][]byte{noise(t, 1, 500_000), noise(t, 2, 300_000)}
	f.putImage(t, "tag", "amd64", layers...)
	o := testOptions(t)
	last := map[int]Progress{}
	o.Progress = func(p Progress) {
		if p.Done < last[p.Layer].Done || p.Done > p.Total {
			t.Errorf("progress %+v after %+v", p, last[p.Layer])
		}
		last[p.Layer] = p
	}
	image := mustRead(t, f.ref(), o, layers...)
	for i, l := range image.Layers {
		if want := (Progress{i, l.Size, l.Size}); last[i] != want {
			t.Errorf("layer %d ends with %+v, not %+v", i, last[i], want)
		}
	}
}

func TestMirrorsAreAskedFirst(t *testing.T) {
	f, mirror := newFakeRegistry(t), newFakeRegistry(t)
	layer := noise(t, 1, 1000)
	f.putImage(t, "tag", "amd64", layer)
	mirror.putImage(t, "tag", "amd64", layer)
	o := testOptions(t)
	o.Mirrors = map[string][]string{f.host: {mirror.host + "/cache"}}
	mustRead(t, f.ref(), o, layer)
	if f.count("") != 0 || mirror.count("/v2/cache/some/image/manifests/tag") == 0 {
		t.Errorf("asked %v, and of the mirror %v", f.asked, mirror.asked)
	}
	// A mirror that lies about a layer costs nothing but time.
	mirror.set(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	o.Cache = t.TempDir()
	mustRead(t, f.ref(), o, layer)
	mirror.server.Close()
	o.Cache = t.TempDir()
	mustRead(t, f.ref(), o, layer)
	o.Mirrors = map[string][]string{f.host: {mirror.host + "/../x"}}
	refuses(t, f.ref(), o, "invalid mirror")
}
