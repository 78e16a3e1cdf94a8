package store

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// spoil changes a byte of a file of the store.
func spoil(t *testing.T, path string, at int64) {
	t.Helper()
	must(os.Chmod(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// replace puts a file of another type in the place of a file or directory of the store.
func replace(path string, other func(path string) error) {
	must(os.RemoveAll(path))
	must(other(path))
}

func file(path string) error      { return os.WriteFile(path, nil, 0o600) }
func directory(path string) error { return os.Mkdir(path, 0o700) }
func pipe(path string) error      { return unix.Mkfifo(path, 0o600) }
func link(path string) error      { return os.Symlink("/etc/passwd", path) }

type damage struct {
	do    func(b box)
	early bool // a use finds the damage, too
}

// Each damage is found, the damaged image cannot be used, and a pull repairs it, for all users.
func TestDamageIsFoundAndRepaired(t *testing.T) {
	image := digestOf(configOf("one", base, first))
	damages := map[string]damage{
		"a byte of a layer":   {do: func(b box) { spoil(b.T, b.path("layers", base.id.hex(), "tar"), 600) }},
		"a byte of the index": {do: func(b box) { spoil(b.T, b.path("images", image.hex(), "index"), 2100) }},
		"a truncated layer":   {func(b box) { must(os.Truncate(b.path("layers", base.id.hex(), "tar"), 1024)) }, true},
		"a truncated index":   {func(b box) { must(os.Truncate(b.path("images", image.hex(), "index"), 1100)) }, true},
		"a superblock":        {func(b box) { spoil(b.T, b.path("images", image.hex(), "index"), superOffset) }, true},
		"the config":          {func(b box) { spoil(b.T, b.path("images", image.hex(), "config"), 3) }, true},
		"another list of layers": {func(b box) {
			must(os.Chmod(b.path("images", image.hex(), "layers"), 0o600))
			must(os.WriteFile(b.path("images", image.hex(), "layers"), []byte("x"), 0o600))
		}, true},
		"a layer that is missing": {func(b box) { must(os.RemoveAll(b.path("layers", base.id.hex()))) }, true},
	}
	for _, path := range []string{"layers/" + base.id.hex(), "images/" + image.hex()} {
		damages["a file as "+path] = damage{func(b box) { replace(b.path(path), file) }, true}
	}
	for _, path := range []string{
		"layers/" + base.id.hex() + "/tar", "images/" + image.hex() + "/index", "images/" + image.hex() + "/config", "images/" + image.hex() + "/layers",
	} {
		damages["no "+path] = damage{func(b box) { must(os.Remove(b.path(path))) }, true}
		damages["a directory as "+path] = damage{func(b box) { replace(b.path(path), directory) }, true}
		damages["a named pipe as "+path] = damage{func(b box) { replace(b.path(path), pipe) }, true}
		damages["a link as "+path] = damage{func(b box) { replace(b.path(path), link) }, true}
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.pull(alice, "one", base, first)
			b.pull(bob, "one", base, first)
			for _, uid := range []uint32{alice, bob} {
				if err := b.For(uid).Verify(t.Context(), "one"); err != nil {
					t.Fatal(err)
				}
			}
			damage.do(b)
			if damage.early {
				b.wantDamage("a use", func(ctx context.Context) error {
					_, err := b.For(bob).Use(ctx, "one", "box")
					return err
				})
			}
			b.wantDamage("a check", func(ctx context.Context) error { return b.For(alice).Verify(ctx, "one") })
			b.wantDamage("a use after the check", func(ctx context.Context) error {
				_, err := b.For(bob).Use(ctx, "one", "box")
				return err
			})
			b.pull(alice, "one", base, first)
			for _, uid := range []uint32{alice, bob} {
				if err := b.For(uid).Verify(t.Context(), "one"); err != nil {
					t.Errorf("after a pull: %v", err)
				}
			}
			if left, err := os.ReadDir(b.path("drafts")); err != nil || len(left) > 0 {
				t.Errorf("%d drafts are left: %v", len(left), err)
			}
		})
	}
}

func (b box) wantDamage(what string, f func(context.Context) error) {
	b.Helper()
	err := f(b.Context())
	if !errors.As(err, new(*DamagedError)) || !strings.HasSuffix(err.Error(), "; pull the image again") {
		b.Errorf("%s: %v", what, err)
		return
	}
	checkLine(b.T, err)
}

func TestADamagedImageCanBeRemoved(t *testing.T) {
	for _, name := range []string{"config", "index", "layers"} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			image := b.pull(alice, "one", base)
			must(os.Remove(filepath.Join(b.imageDir(image.ID), name)))
			u := b.For(alice)
			if _, err := u.Remove(t.Context(), "one"); err != nil {
				t.Fatal(err)
			}
			if _, err := u.Prune(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := contents(b.dir); len(got) != 1 {
				t.Errorf("left are %q", got)
			}
		})
	}
}

// Foreign and broken files in the store are an error, or are left alone.
func TestForeignFilesInTheStore(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	for _, path := range []string{"layers/foreign", "images/foreign", "users/foreign", "users/4294967296", "users/1002", "users/1000/images/foreign"} {
		must(os.WriteFile(b.path(path), nil, 0o600))
	}
	if _, err := b.For(alice).Prune(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.path("layers/foreign")); err != nil {
		t.Error(err)
	}
	broken := b.For(alice).referencePath("broken")
	must(os.WriteFile(broken, []byte("{"), 0o600))
	if _, err := b.For(alice).Images(t.Context()); err == nil || !strings.Contains(err.Error(), broken+": ") || !strings.HasSuffix(err.Error(), "remove the file") {
		t.Errorf("a broken reference: %v", err)
	}
}

// A restored backup can lack empty directories, and drafts can hold files of any type.
func TestAStoreIsWholeAfterItIsOpened(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	for _, part := range []string{"uses", "adding", "removing"} {
		must(os.Remove(b.For(alice).path(part)))
	}
	for name, put := range map[string]func(string) error{"link": link, "pipe": pipe, "file": file, "directory": directory} {
		must(put(b.path("drafts", name)))
	}
	s, err := Open(t.Context(), b.dir)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(b.path("drafts")); err != nil || len(left) > 0 {
		t.Errorf("%d drafts are left: %v", len(left), err)
	}
	u := s.For(alice)
	h, err := u.Use(t.Context(), "one", "box")
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if err := u.Release(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if _, err := u.Remove(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}

func TestAForeignDirectoryIsRefused(t *testing.T) {
	tests := map[string]struct {
		change func(b box)
		want   string
	}{
		"another version":     {func(b box) { must(os.WriteFile(b.path("version"), []byte("2\n"), 0o600)) }, `unknown version "2\n"; use`},
		"writable":            {func(b box) { must(os.Chmod(b.dir, 0o777)) }, "others could change it"},
		"of another user":     {func(b box) { must(os.Chown(b.dir, bob, bob)) }, "others could change it"},
		"layers are writable": {func(b box) { must(os.Chmod(b.path("layers"), 0o777)) }, "others could change it"},
		"users is a link": {func(b box) {
			must(os.RemoveAll(b.path("users")))
			must(os.Symlink("/tmp", b.path("users")))
		}, "not a directory"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			test.change(b)
			_, err := Open(t.Context(), b.dir)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("the error is %v", err)
			}
			checkLine(t, err)
		})
	}
}

func TestTheSuperblockHasNothingUnknown(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base, first)
	h, err := b.For(alice).Use(t.Context(), "one", "box")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	raw, err := os.ReadFile(descriptorPath(h.Index))
	if err != nil {
		t.Fatal(err)
	}
	check := func(raw []byte, layers []*os.File) error {
		f, err := os.CreateTemp(t.TempDir(), "")
		must(err)
		defer f.Close()
		_, err = f.Write(raw)
		must(err)
		return checkIndex(f, layers)
	}
	if err := check(raw, h.Layers); err != nil {
		t.Fatal(err)
	}
	if err := check(raw, h.Layers[:1]); err == nil {
		t.Error("a layer too few was no fault")
	}
	if err := check(raw[:superOffset+slotSize], h.Layers); err == nil {
		t.Error("an index without a device table was no fault")
	}
	// Each byte of the superblock and the device table, but those that only name or place parts.
	free := map[int]bool{}
	for _, field := range [][2]int{{14, 36}, {40, 44}, {48, 80}, {128, 192}, {200, 320}, {328, 384}} {
		for i := field[0]; i < field[1]; i++ {
			free[i] = true
		}
	}
	for i := range 3 * slotSize {
		changed := append([]byte(nil), raw...)
		at := superOffset + i
		changed[at] ^= 0x80
		if err := check(changed, h.Layers); err == nil && !free[i] {
			t.Errorf("byte %d of the superblock was changed from %#x, and is no fault", i, raw[at])
		} else if err != nil {
			checkLine(t, err)
		}
	}
	binary.LittleEndian.PutUint64(raw[superOffset+16:], 0)
	if err := check(raw, h.Layers); err == nil {
		t.Error("no inodes was no fault")
	}
}
