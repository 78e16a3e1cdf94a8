package images

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// zeros is a compressed layer of 10 GiB of zeros: many members of gzip with 64 MiB each.
func zeros(t *testing.T) []byte {
	t.Helper()
	var member bytes.Buffer
	z := gzip.NewWriter(&member)
	if _, err := z.Write(make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.Repeat(member.Bytes(), 10<<30/(64<<20))
}

// addZeros hands in the layer of zeros, and returns the number of bytes that were read.
func addZeros(t *testing.T, k *Keeper, u User) (read int64, err error) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(zeros(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	err = k.AddLayer(t.Context(), u, "sha256:"+strings.Repeat("0", 64), f)
	read, seekErr := f.Seek(0, io.SeekCurrent)
	if seekErr != nil {
		t.Fatal(seekErr)
	}
	return read, err
}

func checkEmpty(t *testing.T, dir string) {
	t.Helper()
	for _, part := range []string{"drafts", "layers"} {
		if left, err := filepath.Glob(filepath.Join(dir, part, "*")); err != nil || len(left) > 0 {
			t.Errorf("%q are left behind, %v", left, err)
		}
	}
}

// A small layer can inflate to far more than the disk has. The bound ends it early.
func TestLayerOfZerosEndsAtTheBound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	k := New(dir)
	defer k.Close()
	read, err := addZeros(t, k, User{LayerBytes: 100 << 20})
	if err == nil || !strings.Contains(err.Error(), "more than 104857600 bytes when inflated; allow more with --max-bytes") {
		t.Errorf("%v", err)
	}
	if read > 3<<20 {
		t.Errorf("%d bytes were read", read)
	}
	checkEmpty(t, dir)
	// The bound of a rule counts, too, and the client cannot lift it.
	if _, err := addZeros(t, k, User{UID: 1000, MaxBytes: 50 << 20, LayerBytes: 1 << 40}); err == nil || !strings.Contains(err.Error(), "remove images") {
		t.Errorf("%v", err)
	}
	checkEmpty(t, dir)
}

// Without a bound a layer leaves a tenth of the free space.
func TestLayerOfZerosLeavesSpace(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	testhost.PrivateMounts(t)
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=200m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(disk, unix.MNT_DETACH)
	dir := filepath.Join(disk, "images")
	k := New(dir)
	defer k.Close()
	_, err := addZeros(t, k, User{})
	if err == nil || !strings.Contains(err.Error(), "of the file system would be left free; remove images, make room, or allow more with --max-bytes") || errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	checkEmpty(t, dir)
	var st unix.Statfs_t
	if err := unix.Statfs(disk, &st); err != nil || int64(st.Bavail)*st.Bsize < 195<<20 {
		t.Errorf("%d bytes are free, %v", int64(st.Bavail)*st.Bsize, err)
	}
	// The flag takes the place of the default, so that the disk itself is the bound.
	if _, err := addZeros(t, k, User{LayerBytes: 1 << 30}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("%v", err)
	}
	checkEmpty(t, dir)
}
