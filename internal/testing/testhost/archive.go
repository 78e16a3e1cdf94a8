package testhost

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
)

// Layer is a tar archive with one file of this content, and its digest.
func Layer(t testing.TB, content string) (layer []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg})
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return b.Bytes(), "sha256:" + hex.EncodeToString(sum[:])
}

// HugeHeader begins an archive. Its first entry, a header of the kind, announces 1 GiB.
func HugeHeader(kind byte) []byte {
	h := make([]byte, 512)
	copy(h, "x")
	copy(h[100:], "0000644\x000000000\x000000000\x0010000000000\x0000000000000\x00        ")
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, c := range h {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(h, make([]byte, 1<<16)...)
}
