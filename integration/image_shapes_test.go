package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An imageShape is an image as some program writes it, or as some registry sends it.
type imageShape struct {
	// row is the row of docs/images.md that the shape is an example of.
	row, name string
	// make returns the descriptor that the tag leads to, or the argument of image import.
	make   func(s *shaper) object
	source func(s *shaper) string
	// answer is a server in place of Debian's registry, which has the objects but may answer differently.
	answer func(s *shaper, w http.ResponseWriter, r *http.Request) (answered bool)
	// reference completes the name of the image in the registry: empty, or with the digest.
	reference func(digest string) string
	args      []string // of the pull or import
	// refused are words of the refusal. Without them a sandbox of the image prints want.
	refused string
	script  string                   // of the shell in the sandbox; empty: it prints the name of the shape
	run     func(s *shaper) []string // in place of the script: arguments of do
	want    string                   // empty: the name of the shape
}

// A shaper makes the objects of an image.
type shaper struct {
	t     *testing.T
	name  string
	base  []byte // the tar of a layer with busybox
	gzip  []byte // the same, packed
	blobs map[string][]byte
	// documents are manifests and indexes by their digests, order are their digests.
	documents map[string]shapedDocument
	order     []string
	missing   map[string]bool // blobs that a server lacks
}

type shapedDocument struct {
	mediaType string
	text      []byte
}

const (
	ociImage    = "application/vnd.oci.image."
	ociManifest = ociImage + "manifest.v1+json"
	ociIndex    = ociImage + "index.v1+json"
	ociConfig   = ociImage + "config.v1+json"
	ociLayer    = ociImage + "layer.v1.tar+gzip"

	dockerDistribution = "application/vnd.docker.distribution.manifest."
	dockerManifest     = dockerDistribution + "v2+json"
	dockerList         = dockerDistribution + "list.v2+json"
	dockerConfig       = "application/vnd.docker.container.image.v1+json"
	dockerLayer        = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

func newShaper(t *testing.T, name string, base, zipped []byte) *shaper {
	return &shaper{t: t, name: name, base: base, gzip: zipped,
		blobs: map[string][]byte{}, documents: map[string]shapedDocument{}, missing: map[string]bool{}}
}

func describeBlob(mediaType string, content []byte) object {
	d := object{"digest": digestOfImage(content), "size": len(content)}
	if mediaType != "" {
		d["mediaType"] = mediaType
	}
	return d
}

func (s *shaper) blob(mediaType string, content []byte) object {
	s.blobs[digestOfImage(content)] = content
	return describeBlob(mediaType, content)
}

// document puts a manifest or an index in. The media type is that of the request and the descriptor.
func (s *shaper) document(mediaType string, o object) object {
	return s.text(mediaType, marshal(s.t, o))
}

func (s *shaper) text(mediaType string, text []byte) object {
	d := describeBlob(mediaType, text)
	digest := d["digest"].(string)
	if _, ok := s.documents[digest]; !ok {
		s.order = append(s.order, digest)
	}
	s.documents[digest] = shapedDocument{mediaType, text}
	return d
}

// index is an index of OCI.
func (s *shaper) index(entries ...object) object {
	return s.document(ociIndex, object{"schemaVersion": 2, "mediaType": ociIndex, "manifests": entries})
}

// list is a manifest list of Docker.
func (s *shaper) list(entries ...object) object {
	return s.document(dockerList, object{"schemaVersion": 2, "mediaType": dockerList, "manifests": entries})
}

// with is a copy of an object with more fields.
func (o object) with(more object) object {
	o = maps.Clone(o)
	maps.Copy(o, more)
	return o
}

func (o object) without(keys ...string) object {
	o = maps.Clone(o)
	for _, key := range keys {
		delete(o, key)
	}
	return o
}

// on is a descriptor with a platform, such as linux/arm/v7.
func (o object) on(platform string) object {
	parts := strings.Split(platform, "/")
	p := object{"os": parts[0], "architecture": parts[1]}
	if len(parts) > 2 {
		p["variant"] = parts[2]
	}
	return o.with(object{"platform": p})
}

// A shapedImage is an image of the base layer and its own ones. The zero value has one own layer with a file that tells
// the name of the shape.
type shapedImage struct {
	manifestType, configType, layerType string // empty: of OCI
	// tars are the own layers, and pack packs one. The default is gzip.
	tars [][]byte
	pack func(tar []byte) []byte
	// config, manifest and layer change the document before its digest is made.
	config, manifest, layer func(o object)
	alone                   bool // without the base layer
}

// own is the tar of the layer that tells the name.
func (s *shaper) own(more ...imageEntry) []byte {
	return tarOfImage(s.t, append([]imageEntry{imageFile("shape", s.name+"\n")}, more...)...)
}

// image puts an image in, and returns the descriptor of its manifest.
func (s *shaper) image(i shapedImage) object {
	i = s.filled(i)
	var layers []object
	var diffIDs []string
	if !i.alone {
		layers, diffIDs = append(layers, s.blob(ociLayer, s.gzip)), append(diffIDs, digestOfImage(s.base))
	}
	for _, tar := range i.tars {
		layer := s.blob(strings.TrimPrefix(i.layerType, "none"), i.pack(tar))
		if i.layer != nil {
			i.layer(layer)
		}
		layers, diffIDs = append(layers, layer), append(diffIDs, digestOfImage(tar))
	}
	var config object
	decode(s.t, string(configOfImage(s.t, diffIDs...)), &config)
	if i.config != nil {
		i.config(config)
	}
	manifest := object{"schemaVersion": 2, "mediaType": i.manifestType, "layers": layers,
		"config": s.blob(strings.TrimPrefix(i.configType, "none"), marshal(s.t, config))}
	if layers == nil {
		manifest["layers"] = []object{}
	}
	if i.manifest != nil {
		i.manifest(manifest)
	}
	return s.document(i.manifestType, manifest)
}

// filled has the defaults.
func (s *shaper) filled(i shapedImage) shapedImage {
	for field, value := range map[*string]string{&i.manifestType: ociManifest, &i.configType: ociConfig, &i.layerType: ociLayer} {
		if *field == "" {
			*field = value
		}
	}
	if i.tars == nil {
		i.tars = [][]byte{s.own()}
	}
	if i.pack == nil {
		i.pack = func(tar []byte) []byte { return gzipOfImage(s.t, tar) }
	}
	return i
}

// plain has one own layer, and the types of OCI.
func (s *shaper) plain() object { return s.image(shapedImage{}) }

// push puts all objects into a registry, under a tag. Without a target it puts the base layer in, for all shapes.
func (s *shaper) push(registry, tag string, target object) {
	s.t.Helper()
	base := "http://" + registry + "/v2/shapes/image/"
	for digest, content := range s.blobs {
		if target != nil && digest == digestOfImage(s.gzip) {
			continue
		}
		start := s.send(http.MethodPost, base+"blobs/uploads/", "", nil, http.StatusAccepted)
		location := start.Header.Get("Location")
		join := "?"
		if strings.Contains(location, "?") {
			join = "&"
		}
		s.send(http.MethodPut, location+join+"digest="+digest, "application/octet-stream", content, http.StatusCreated)
	}
	for _, digest := range s.order {
		id := digest
		if digest == target["digest"] {
			id = tag
		}
		s.send(http.MethodPut, base+"manifests/"+id, s.documents[digest].mediaType, s.documents[digest].text, http.StatusCreated)
	}
}

func (s *shaper) send(method, url, contentType string, body []byte, want int) *http.Response {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", contentType)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != want {
		s.t.Fatalf("%s %s: %s, %s, %v; a shape that the registry refuses needs a server", method, url, response.Status, text, err)
	}
	return response
}

// serve answers as a registry does, except where answer answers.
func (s *shaper) serve(tag string, target object, answer func(s *shaper, w http.ResponseWriter, r *http.Request) bool) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		if id == tag {
			id = target["digest"].(string)
			r.URL.Path = strings.TrimSuffix(r.URL.Path, tag) + id
		}
		document, isDocument := s.documents[id]
		content, ok := s.blobs[id]
		switch {
		case r.URL.Path == "/v2/":
			return
		case answer(s, w, r):
			return
		case isDocument:
			w.Header().Set("Content-Type", document.mediaType)
			w.Header().Set("Docker-Content-Digest", id)
			content = document.text
		case !ok || s.missing[id]:
			http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.Write(content)
	}))
	s.t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// layoutFiles are the files of an OCI layout with these entries.
func (s *shaper) layoutFiles(entries ...object) map[string][]byte {
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`),
		"index.json": marshal(s.t, object{"schemaVersion": 2, "manifests": entries})}
	for digest, content := range s.blobs {
		files[blobPath(digest)] = content
	}
	for digest, d := range s.documents {
		files[blobPath(digest)] = d.text
	}
	return files
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// directory writes files into a new directory.
func (s *shaper) directory(files map[string][]byte) string {
	dir := s.t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
			s.t.Fatal(err)
		}
	}
	return dir
}

// archive writes files into a new tar archive.
func (s *shaper) archive(files map[string][]byte) string {
	var entries []imageEntry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, imageFile(name, string(files[name])))
	}
	return imageArchive(s.t, tarOfImage(s.t, entries...))
}

// TestImageShapes imports images as they are in the wild, and runs them.
func TestImageShapes(t *testing.T) {
	h, i := newImageRoots(t), newImageTools(t)
	registry := i.serveRegistry("validation: {manifests: {urls: {allow: [\"^https://\"]}}}\n", false)
	base := tarOfImage(t, imageProgram(t, "bin/busybox", peer("bin/busybox")), imageSymlink("bin/sh", "busybox"), imageDir("etc"))
	first := newShaper(t, "", base, gzipOfImage(t, base))
	first.blob(ociLayer, first.gzip)
	first.push(registry, "", nil)
	for n, shape := range allImageShapes() {
		t.Run(shape.row+"/"+shape.name, func(t *testing.T) {
			t.Parallel()
			h := &imageHost{&sandboxes{t: t, root: h.root}, h.data, h.env}
			s := newShaper(t, shape.name, base, first.gzip)
			tag := fmt.Sprint("shape-", n)
			h.meetShape(s, shape, tag, shape.arguments(s, registry, tag))
		})
	}
}

// arguments are those of image for the pull or import.
func (i imageShape) arguments(s *shaper, registry, tag string) []string {
	if i.source != nil {
		return append([]string{"import", "--quiet", "--name", tag, i.source(s)}, i.args...)
	}
	target := i.make(s)
	if i.answer != nil {
		registry = s.serve(tag, target, i.answer)
	} else {
		s.push(registry, tag, target)
	}
	suffix := ":" + tag
	if i.reference != nil {
		suffix = i.reference(target["digest"].(string))
	}
	return append([]string{"pull", "--quiet", "--name", tag, registry + "/shapes/image" + suffix}, i.args...)
}

// meetShape pulls or imports an image, and runs a sandbox.
func (h *imageHost) meetShape(s *shaper, shape imageShape, tag string, arguments []string) {
	h.t.Helper()
	got := run(h.t, h.image(arguments...))
	if shape.refused != "" {
		wantFailure(h.t, got, shape.refused)
		h.t.Log(got.stderr)
		return
	}
	if got.code != 0 {
		h.t.Fatalf("%+v", got)
	}
	script, want := shape.script, shape.want
	if script == "" {
		script = "busybox cat /shape"
	}
	if want == "" {
		want = shape.name + "\n"
	}
	words := []string{"--env", "PATH=/bin", "--cwd", "/", "--", "/bin/busybox", "sh", "-c", script}
	if shape.run != nil {
		words = shape.run(s)
	}
	if ran := h.run(append([]string{"do", "--image", tag}, words...)...); ran.code != 0 || ran.stdout != want {
		h.t.Errorf("%+v, want %q", ran, want)
	}
}

func allImageShapes() []imageShape {
	return slices.Concat(manifestShapes(), indexShapes(), configShapes(), layerShapes(), tarShapes(), fileShapes())
}

// The table of docs/images.md has the rows of the shapes, and no other ones.
func TestImageShapesAreDocumented(t *testing.T) {
	tested := map[string]string{}
	for _, shape := range allImageShapes() {
		result := "runs"
		if shape.refused != "" {
			result = "refused"
		}
		if other, ok := tested[shape.row]; ok && other != result {
			t.Errorf("row %q: some shapes are refused, and others are not", shape.row)
		}
		tested[shape.row] = result
	}
	_, page, _ := strings.Cut(content(t, "../docs/images.md"), "\n## Which images\n")
	page, _, _ = strings.Cut(page, "\n## ")
	documented := map[string]string{}
	for line := range strings.Lines(page) {
		if cells := strings.Split(line, "|"); len(cells) >= 4 {
			result, _, _ := strings.Cut(strings.TrimSpace(cells[2]), ",")
			documented[strings.TrimSpace(cells[1])] = result
		}
	}
	delete(documented, "image")
	delete(documented, "---")
	for row, result := range tested {
		if documented[row] != result {
			t.Errorf("docs/images.md says of %q: %q, and the shapes: %q", row, documented[row], result)
		}
	}
	for row := range documented {
		if tested[row] == "" {
			t.Errorf("docs/images.md has the row %q, and no shape is of it", row)
		}
	}
	if n := len(allImageShapes()); n < 60 {
		t.Errorf("only %d shapes", n)
	}
}
