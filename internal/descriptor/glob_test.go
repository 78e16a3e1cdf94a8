package descriptor_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestGlobsAsFilepathGlobDoes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]") // this part is no pattern
	for _, file := range []string{"z/1.so", "y/2.so", "y/3.txt", "x/sub/4.so", "file"} {
		testhost.WriteFile(t, filepath.Join(dir, file), "")
	}
	if err := os.Symlink("missing", filepath.Join(dir, "y", "link.so")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, pattern := range []string{
		"*", "*/*.so", "[xy]/*", "*/sub/*.so", "y/2.so", "y/?.so", "*/2.so", "none/*", "*/none", "file/*", "pipe/*", `y/\2.so`,
	} {
		want, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i] = filepath.Join(dir, want[i])
		}
		if got, err := descriptor.Glob(dir, pattern); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", pattern, got, err, want)
		}
	}
	if _, err := descriptor.Glob(dir, "*/["); !errors.Is(err, filepath.ErrBadPattern) {
		t.Errorf("a wrong pattern: %v", err)
	}
}

// Without a free descriptor no directory can be read, and filepath.Glob finds nothing.
func TestTooManyOpenFilesAreAnError(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/file", "")
	testhost.WithFreeDescriptors(t, 0, func() {
		if found, err := descriptor.Glob(dir, "*"); !errors.Is(err, unix.EMFILE) {
			t.Errorf("%q, %v", found, err)
		}
	})
	if found, err := descriptor.Glob(dir, "*"); err != nil || len(found) != 1 {
		t.Errorf("afterwards: %q, %v", found, err)
	}
}
