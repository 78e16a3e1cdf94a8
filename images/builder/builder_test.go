package builder

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// layerTar is the tar of a layer with one file.
func layerTar(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compressed(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newFile is an open file with a content, at its beginning.
func newFile(t *testing.T, content []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, f)
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func read(t *testing.T, f *os.File) []byte {
	t.Helper()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestInflate(t *testing.T) {
	testhost.NeedRoot(t, "a worker changes its user")
	layer := layerTar(t, "a", strings.Repeat("content", 10000))
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"gzip": compressed(t, layer), "zstd": z.EncodeAll(layer, nil), "plain": layer} {
		out := newFile(t, nil)
		if err := Inflate(t.Context(), newFile(t, content), out, 1<<20); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(read(t, out), layer) {
			t.Errorf("%s: the tar is another one", name)
		}
	}
	if err := z.Close(); err != nil {
		t.Error(err)
	}
}

func TestInflateEndsAtItsBound(t *testing.T) {
	testhost.NeedRoot(t, "a worker changes its user")
	const most = 1 << 20
	out := newFile(t, nil)
	err := Inflate(t.Context(), newFile(t, compressed(t, make([]byte, 20<<20))), out, most)
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), "the layer has more than 1048576 bytes when inflated") {
		t.Errorf("a bomb: %v", err)
	}
	if n := len(read(t, out)); n != most {
		t.Errorf("%d bytes were written", n)
	}
}

func TestTheIndexIsTheSameEachTime(t *testing.T) {
	testhost.NeedRoot(t, "a worker changes its user")
	layers := []*os.File{newFile(t, layerTar(t, "a", "1")), newFile(t, layerTar(t, "b", "22"))}
	first, second := newFile(t, nil), newFile(t, nil)
	for _, out := range []*os.File{first, second} {
		if _, err := Index(t.Context(), layers, out, index.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	if a := read(t, first); len(a) == 0 || !bytes.Equal(a, read(t, second)) {
		t.Errorf("an index has %d bytes, and the other has other content", len(a))
	}
}

func TestAWrongLayerIsAnErrorOfOneLine(t *testing.T) {
	testhost.NeedRoot(t, "a worker changes its user")
	_, err := Index(t.Context(), []*os.File{newFile(t, bytes.Repeat([]byte("no tar"), 1000))}, newFile(t, nil), index.Limits{})
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "make the index of an image: ") {
		t.Errorf("the error is %v", err)
	}
}

// A small image gets little memory, and no image gets more than the limits of images need.
func TestMemoryOfAnIndexFollowsTheSize(t *testing.T) {
	l := index.DefaultLimits()
	small, large := indexBounds(l, 1<<20).Memory, indexBounds(l, 1<<40).Memory
	if small > baseMemory+8<<20 {
		t.Errorf("layers of 1 MiB: %d MiB of memory", small>>20)
	}
	if most := baseMemory + int64(l.Files)*fileMemory + l.Text; large != most {
		t.Errorf("layers of 1 TiB: %d MiB of memory, want %d", large>>20, most>>20)
	}
}
