package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// sparseTar is an archive of one sparse file, in the format 1.0 of GNU tar. The file has one byte of data.
func sparseTar(t *testing.T, size int) []byte {
	t.Helper()
	content := make([]byte, 512+1)
	copy(content, "1\n0\n1\n")
	content[512] = 'x'
	// The writer of package tar refuses the names of these records. They get their right names, of the same length, below.
	h := &tar.Header{Name: "x", Mode: 0o644, Size: int64(len(content)), PAXRecords: map[string]string{
		"ANY.sparse.major": "1", "ANY.sparse.minor": "0", "ANY.sparse.realsize": fmt.Sprint(size)}}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("ANY.sparse"), []byte("GNU.sparse"))
}

// Sparse files are copied into the index, so that an archive of some kilobytes can have an index of a gigabyte.
func TestSparseFilesCountAgainstTheBound(t *testing.T) {
	layer := sparseTar(t, 64<<20)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(layer))
	path := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(path, layer, 0o600); err != nil {
		t.Fatal(err)
	}
	add := protocol.AddImage{Reference: "sparse", Config: []byte(`{"rootfs":{"type":"layers","diff_ids":["` + digest + `"]}}`)}
	for name, c := range map[string]struct {
		bounded, free User
		wayOut        string
	}{
		"of a rule":    {User{UID: 1000, MaxBytes: 1 << 20}, User{UID: 1000}, "remove images"},
		"of a request": {User{LayerBytes: 1 << 20}, User{}, "--max-bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			content, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer content.Close()
			k := New(filepath.Join(t.TempDir(), "images"))
			defer k.Close()
			if err := k.AddLayer(t.Context(), c.bounded, digest, content); err != nil {
				t.Fatal(err)
			}
			_, err = k.AddImage(t.Context(), c.bounded, add)
			if err == nil || !strings.Contains(err.Error(), "bytes of sparse files") || !strings.Contains(err.Error(), c.wayOut) {
				t.Errorf("an image beyond the bound: %v", err)
			}
			if _, err := k.AddImage(t.Context(), c.free, add); err != nil {
				t.Errorf("an image without the bound: %v", err)
			}
		})
	}
}
