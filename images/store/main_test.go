package store

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/images/builder"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// roleVariable makes this program a process that does one operation: see roleMain.
const roleVariable = "IMAGE_STORE_TEST_ROLE"

func TestMain(m *testing.M) {
	builder.TakeOver()
	if role := os.Getenv(roleVariable); role != "" {
		if err := operations()[role](context.Background(), os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testhost.RunMounting(m))
}

// Users of the tests.
const (
	root  = 0
	alice = 1000
	bob   = 1001
)

// A layer is a layer of the tests.
type layer struct {
	id         Digest
	tar        []byte
	compressed []byte
}

// newLayer is a layer with files: name, content, name, content ...
func newLayer(files ...string) layer {
	var b, z bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		must(w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}))
		must2(w.Write([]byte(files[i+1])))
	}
	must(w.Close())
	c := gzip.NewWriter(&z)
	must2(c.Write(b.Bytes()))
	must(c.Close())
	return layer{digestOf(b.Bytes()), b.Bytes(), z.Bytes()}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must2(_ int, err error) { must(err) }

// The layers of the tests. Two images share the first.
var (
	base  = newLayer("a", "base", "b", strings.Repeat("b", 20000))
	first = newLayer("c", "first", "d", strings.Repeat("d", 30000))
	other = newLayer("c", "other")
)

// configOf is the config of an image with layers. The label makes another image of the same layers.
func configOf(label string, layers ...layer) []byte {
	var c config
	c.RootFS.Type = "layers"
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, string(l.id))
	}
	raw, err := json.Marshal(map[string]any{"rootfs": c.RootFS, "created": "2026-01-02T03:04:05Z", "label": label})
	must(err)
	return raw
}

// content is an open file with the compressed layer.
func (l layer) content() (*os.File, error) {
	f, err := os.CreateTemp("", "layer")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	if _, err := f.Write(l.compressed); err != nil {
		return nil, err
	}
	_, err = f.Seek(0, 0)
	return f, err
}

func addLayer(ctx context.Context, p *Pull, l layer) error {
	f, err := l.content()
	if err != nil {
		return err
	}
	defer f.Close()
	return p.AddLayer(ctx, l.id, f)
}

// pull adds an image with its layers.
func pull(ctx context.Context, u User, name string, layers ...layer) (Image, error) {
	p, err := u.Pull(ctx)
	if err != nil {
		return Image{}, err
	}
	defer p.Close()
	for _, l := range layers {
		if err := addLayer(ctx, p, l); err != nil {
			return Image{}, err
		}
	}
	return p.AddImage(ctx, NewImage{Reference: name, Config: configOf(name, layers...)})
}

// box is a store of a test.
type box struct {
	*testing.T
	*Store
}

func newBox(t *testing.T) box {
	t.Helper()
	testhost.NeedRoot(t, "a worker changes its user")
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return box{t, s}
}

func (b box) pull(uid uint32, name string, layers ...layer) Image {
	b.Helper()
	image, err := pull(b.Context(), b.For(uid), name, layers...)
	if err != nil {
		b.Fatal(err)
	}
	return image
}

// names are the names and ids of a user's images.
func (b box) names(uid uint32) (all []string) {
	b.Helper()
	images, err := b.For(uid).Images(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, i := range images {
		if len(i.References) == 0 {
			all = append(all, "<none>")
		}
		for _, r := range i.References {
			all = append(all, r.Name)
		}
	}
	return all
}

// contents are the paths below a store that hold layers, images and rights, without locks.
func contents(dir string) (all []string) {
	if !isThere(dir) {
		return nil
	}
	must(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path, err = filepath.Rel(dir, path)
		if !e.IsDir() && e.Name() != "lock" && e.Name() != "pulls" || strings.HasPrefix(path, "drafts/") {
			all = append(all, path)
		}
		return err
	}))
	return all
}

// checkLine checks that an error is one line, and not too long.
func checkLine(t *testing.T, err error) {
	t.Helper()
	if text := err.Error(); strings.Contains(text, "\n") || len(text) > 1000 {
		t.Errorf("the error is no line: %q", text)
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
