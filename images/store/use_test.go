package store

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

// The two kinds of use by one sandbox are one use. That of a sandbox is a link, which is there as a whole or not at all.
func TestAUseUntilBoot(t *testing.T) {
	b := newBox(t)
	image := b.pull(alice, "one", base)
	u := b.For(alice)
	path := u.uses().path("box", image.ID)
	want := []Use{{"box", image.ID}}
	for _, test := range []struct {
		use    func() (*Held, error)
		isLink bool
	}{
		{func() (*Held, error) { return u.UseUntilBoot(t.Context(), "one", "box") }, true},
		{func() (*Held, error) { return u.UseUntilBoot(t.Context(), "one", "box") }, true},
		{func() (*Held, error) { return u.Use(t.Context(), "one", "box") }, false},
		{func() (*Held, error) { return u.UseUntilBoot(t.Context(), "one", "box") }, false}, // it does not become weaker
	} {
		h, err := test.use()
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if isLink := info.Mode().Type() == os.ModeSymlink; isLink != test.isLink {
			t.Errorf("the use is %v; a link: %v", info.Mode(), test.isLink)
		}
		if uses, err := u.Uses(t.Context()); err != nil || !slices.Equal(uses, want) {
			t.Errorf("the uses are %+v: %v", uses, err)
		}
		if _, err := u.Remove(t.Context(), "one"); !errors.As(err, new(*InUseError)) {
			t.Errorf("a removal: %v", err)
		}
	}
	if err := u.Release(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Remove(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}

// A release ends the uses of all images by one sandbox, and no use by another one.
func TestAReleaseEndsTheUsesByOneSandbox(t *testing.T) {
	b := newBox(t)
	one, two := b.pull(alice, "one", base), b.pull(alice, "two", base, first)
	u := b.For(alice)
	for _, use := range []Use{{"box", one.ID}, {"box", two.ID}, {"box2", one.ID}, {"bo", two.ID}} {
		h, err := u.UseUntilBoot(t.Context(), string(use.Image), use.By)
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
	}
	if err := u.Release(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	uses, err := u.Uses(t.Context())
	if err != nil || len(uses) != 2 || !slices.Contains(uses, Use{"box2", one.ID}) || !slices.Contains(uses, Use{"bo", two.ID}) {
		t.Errorf("left are %+v: %v", uses, err)
	}
}

// A layer without its archive is missing, and the sizes of the others count.
func TestALayerWithoutArchive(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base, first)
	if err := os.Remove(b.path("layers", base.id.hex(), tarName)); err != nil {
		t.Fatal(err)
	}
	image, err := b.For(alice).Find(t.Context(), "one")
	if err != nil || image.Damaged != "layer "+string(base.id)+" is missing or damaged" || image.Size != int64(len(first.tar)) {
		t.Errorf("%+v: %v", image, err)
	}
	if _, err := b.For(alice).UseUntilBoot(t.Context(), "one", "box"); !errors.As(err, new(*DamagedError)) {
		t.Errorf("a use: %v", err)
	}
}

// A host that loses its power removes no sandbox. After the next boot the use has no sandbox, and its name is free.
func TestAUseEndsWithTheBoot(t *testing.T) {
	b := newBox(t)
	u := b.For(alice)
	image := b.pull(alice, "one", base)
	old := fmt.Sprintf(`{"By":"box","Image":%q,"Boot":"00000000-0000-0000-0000-000000000000"}`, image.ID)
	path := u.uses().path("box", image.ID)
	must(os.Symlink(old, path))
	if uses, err := u.Uses(t.Context()); err != nil || len(uses) > 0 {
		t.Errorf("the uses are %v, %v", uses, err)
	}
	must(os.Symlink(old, path))
	h, err := u.UseUntilBoot(t.Context(), "one", "box")
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if _, err := u.Remove(t.Context(), "one"); !errors.As(err, new(*InUseError)) {
		t.Errorf("a removal during the new use: %v", err)
	}
	must(os.Remove(path))
	must(os.Symlink(old, path))
	if _, err := u.Remove(t.Context(), "one"); err != nil {
		t.Errorf("a removal after the boot: %v", err)
	}
}
