package source

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// zeros is a compressed archive of 10 GiB: many members of gzip with 64 MiB of zeros each.
func zeros(t *testing.T) []byte {
	t.Helper()
	return bytes.Repeat(gzipped(t, make([]byte, 64<<20)), 10<<30/(64<<20))
}

// A copy of an archive or a directory in the cache has the bound of its layer.
func TestCopiesInTheCacheHaveABound(t *testing.T) {
	tree := t.TempDir()
	testhost.WriteFile(t, filepath.Join(tree, "file"), "")
	if err := os.Truncate(filepath.Join(tree, "file"), 10<<30); err != nil {
		t.Fatal(err)
	}
	bomb := zeros(t)
	o := testOptions(t)
	o.MaxBytes = 50 << 20
	o.Stdin = bytes.NewReader(bomb)
	refuses(t, "-", o, "more than 52428800 bytes", "; allow more with --max-bytes")
	if left := o.Stdin.(*bytes.Reader).Len(); left < len(bomb)-1<<20 {
		t.Errorf("%d bytes were read", len(bomb)-left)
	}
	refuses(t, "dir:"+tree, o, "more than 52428800 bytes", "; allow more with --max-bytes")
	refuses(t, "rootfs:"+putFile(t, bomb), o, "more than 52428800 bytes", "; allow more with --max-bytes")
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 60<<20))
	refuses(t, f.ref(), o, "at most 52428800 are allowed; allow more with --max-bytes")
}

// Without a bound a copy leaves a tenth of the free space.
func TestCopiesInTheCacheLeaveSpace(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	testhost.PrivateMounts(t)
	tree := t.TempDir()
	testhost.WriteFile(t, filepath.Join(tree, "file"), "")
	if err := os.Truncate(filepath.Join(tree, "file"), 10<<30); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	if err := unix.Mount("tmpfs", o.Cache, "tmpfs", 0, "size=100m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(o.Cache, unix.MNT_DETACH)
	o.Stdin = bytes.NewReader(zeros(t))
	for _, reference := range []string{"-", "dir:" + tree} {
		refuses(t, reference, o, "would be left free; make room, or allow more with --max-bytes")
		var st unix.Statfs_t
		if err := unix.Statfs(o.Cache, &st); err != nil || int64(st.Bavail)*st.Bsize < 99<<20 {
			t.Errorf("%d bytes are free, %v", int64(st.Bavail)*st.Bsize, err)
		}
	}
}
