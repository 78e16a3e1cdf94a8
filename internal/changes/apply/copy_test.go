package apply

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The holes of a file are all that a store tells of it once the store was given up. They
// are no content.
func TestNothingIsCopiedFromAStoreThatWasGivenUp(t *testing.T) {
	testhost.NeedRoot(t, "to mount an image")
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	if err := os.Mkdir(filepath.Join(dir, "blanks"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := store.CreateImage(image, store.Limits{Bytes: 64 << 20, Files: 1000}, filepath.Join(dir, "blanks"))
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	top, err := store.MountImage(image)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	from := map[string]*os.File{}
	for name, content := range map[string]string{"holes": "", "sparse": "data", "dense": string(make([]byte, 1<<20))} {
		f, err := os.Create(fmt.Sprintf("/proc/self/fd/%d/%s", top.Fd(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(8 << 20); name != "dense" && err != nil {
			t.Fatal(err)
		}
		from[name] = f
	}
	if err := store.Abandon(image, top); err != nil {
		t.Fatal(err)
	}
	for name, f := range from {
		to, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := new(copier).file(int(to.Fd()), int(f.Fd())); !errors.Is(err, unix.EIO) {
			t.Errorf("%s: %v, want an I/O error", name, err)
		}
		to.Close()
	}
}

// A file that became shorter is refused, also where its stat tells nothing.
func TestAShortenedFileIsNotCopied(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "from"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to, err := os.Create(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	for name, size := range map[string]int64{"holes": 8 << 20, "small": small, "large": 1 << 20} {
		if name != "holes" {
			if _, err := f.WriteAt(make([]byte, size/2), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Truncate(size / 2); err != nil {
			t.Fatal(err)
		}
		c := &copier{}
		for part, err := range map[string]error{
			"extents":   errors.Join(c.extents(int(to.Fd()), int(f.Fd()), size), c.lastByte(int(f.Fd()), size)),
			"dense":     c.part(int(to.Fd()), int(f.Fd()), 0, size),
			"by hand":   (&copier{byHand: true}).part(int(to.Fd()), int(f.Fd()), 0, size),
			"last byte": c.lastByte(int(f.Fd()), size),
		} {
			if !errors.Is(err, errChanging) {
				t.Errorf("%s, %s: %v", name, part, err)
			}
		}
	}
}
