package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestAPulledImageIsListedAndRead(t *testing.T) {
	b := newBox(t)
	image := b.pull(alice, "one", base, first)
	images, err := b.For(alice).Images(t.Context())
	if err != nil || len(images) != 1 {
		t.Fatalf("%d images: %v", len(images), err)
	}
	got := images[0]
	want := Image{ID: digestOf(configOf("one", base, first)), Size: int64(len(base.tar) + len(first.tar)), Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if got.ID != want.ID || got.ID != image.ID || got.Size != want.Size || !got.Created.Equal(want.Created) || got.Damaged != "" ||
		!slices.Equal(got.Layers, []Digest{base.id, first.id}) || got.References[0].Name != "one" {
		t.Errorf("the image is %+v", got)
	}
	h, err := b.For(alice).Use(t.Context(), "one", "box")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if !bytes.Equal(h.Config, configOf("one", base, first)) || len(h.Layers) != 2 {
		t.Errorf("held are %d layers, and the config %s", len(h.Layers), h.Config)
	}
	tar, err := io.ReadAll(io.NewSectionReader(h.Layers[0], 0, 1<<30))
	if err != nil || !bytes.Equal(tar, base.tar) {
		t.Errorf("the layer has %d bytes: %v", len(tar), err)
	}
	for _, f := range append(h.Layers, h.Index) {
		if info, err := f.Stat(); err != nil || info.Mode() != 0o400 {
			t.Errorf("%s has mode %v: %v", f.Name(), info.Mode(), err)
		}
	}
	if drafts, err := os.ReadDir(b.path("drafts")); err != nil || len(drafts) > 0 {
		t.Errorf("%d drafts are left: %v", len(drafts), err)
	}
}

func TestAMountedImageShowsItsFiles(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base, first)
	h, err := b.For(alice).Use(t.Context(), "one", "box")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	mounts := map[string]func() (*os.File, error){"files": h.Mount, "loop devices": h.mountDevices}
	for name, mount := range mounts {
		t.Run(name, func(t *testing.T) {
			m, err := mount()
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			for file, want := range map[string]string{"a": "base", "b": strings.Repeat("b", 20000), "c": "first"} {
				if got, err := os.ReadFile(filepath.Join(descriptorPath(m), file)); err != nil || string(got) != want {
					t.Errorf("%s has %d bytes: %v", file, len(got), err)
				}
			}
			if err := os.WriteFile(filepath.Join(descriptorPath(m), "new"), nil, 0o600); err == nil {
				t.Error("a file was made")
			}
		})
	}
}

// Of many that add one layer, one reads its content. The others wait.
func TestManyAddALayerOnce(t *testing.T) {
	testhost.Concurrent(t)
	b := newBox(t)
	const adders = 20
	l := newLayer("large", strings.Repeat("0123456789", 300000))
	files := make([]*os.File, adders)
	var all sync.WaitGroup
	for i := range files {
		var err error
		if files[i], err = l.content(); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
		all.Go(func() {
			// Each is a store of its own, as in a process of its own.
			s, err := Open(t.Context(), b.dir)
			if err != nil {
				t.Error(err)
				return
			}
			p, err := s.For(alice).Pull(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			if err := p.AddLayer(t.Context(), l.id, files[i]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	readers := 0
	for _, f := range files {
		if at, err := f.Seek(0, io.SeekCurrent); err != nil || at > 0 {
			readers++
		}
	}
	if readers != 1 {
		t.Errorf("%d contents were read", readers)
	}
	if got := contents(b.dir); len(got) != 3 {
		t.Errorf("the store has %q", got)
	}
}

func TestALayerWithAnotherDigestIsRefused(t *testing.T) {
	b := newBox(t)
	before := contents(b.dir)
	p, err := b.For(alice).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pipe, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	w.Close()
	for name, content := range map[string][]byte{"other": other.compressed, "truncated": base.compressed[:len(base.compressed)/2], "empty": nil} {
		f, err := layer{compressed: content}.content()
		if err != nil {
			t.Fatal(err)
		}
		err = p.AddLayer(t.Context(), base.id, f)
		f.Close()
		if err == nil || !strings.HasPrefix(err.Error(), "add layer "+string(base.id)+": ") {
			t.Fatalf("%s: %v", name, err)
		}
		checkLine(t, err)
	}
	if err := p.AddLayer(t.Context(), base.id, pipe); err == nil {
		t.Error("an empty pipe was a layer")
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	event := os.NewFile(uintptr(fd), "event")
	defer event.Close()
	for _, f := range []*os.File{null, event} {
		if err := p.AddLayer(t.Context(), base.id, f); err == nil || !strings.Contains(err.Error(), "use a pipe or a regular file") {
			t.Errorf("%s: %v", f.Name(), err)
		}
	}
	if after := contents(b.dir); !slices.Equal(before, after) {
		t.Errorf("left are %q", after)
	}
}

func TestALayerHasABound(t *testing.T) {
	b := newBox(t)
	b.limits.LayerBytes = 1 << 20
	p, err := b.For(alice).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = addLayer(t.Context(), p, newLayer("zeros", string(make([]byte, 50<<20))))
	if err == nil {
		t.Fatal("a bomb was added")
	}
	checkLine(t, err)
}

func TestAnImageNeedsItsLayers(t *testing.T) {
	b := newBox(t)
	p, err := b.For(alice).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := addLayer(t.Context(), p, base); err != nil {
		t.Fatal(err)
	}
	for want, config := range map[string][]byte{
		"layer " + string(first.id) + " is missing": configOf("", base, first),
		"the config is not valid":                   []byte("{"),
		"root file system of type \"x\"":            []byte(`{"rootfs":{"type":"x"}}`),
		"invalid digest":                            []byte(`{"rootfs":{"type":"layers","diff_ids":["../../x"]}}`),
		"the image has 1001 layers":                 configOf("", slices.Repeat([]layer{base}, 1001)...),
		"more than 4194304 bytes":                   bytes.Repeat([]byte(" "), maxConfig+1),
	} {
		_, err := p.AddImage(t.Context(), NewImage{Reference: "name", Config: config})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("not %q: %v", want, err)
		} else {
			checkLine(t, err)
		}
	}
	for _, name := range []string{"two words", "line\n", strings.Repeat("x", 600), "\x1b[31m"} {
		if _, err := p.AddImage(t.Context(), NewImage{Reference: name, Config: configOf("", base)}); err == nil || !strings.Contains(err.Error(), "invalid name") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestRemoveByNameAndByID(t *testing.T) {
	b := newBox(t)
	one := b.pull(alice, "one", base, first)
	two := b.pull(alice, "two", base, other)
	u := b.For(alice)
	p, err := u.Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.AddImage(t.Context(), NewImage{Reference: "alias", Config: configOf("one", base, first)}); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := u.Remove(t.Context(), one.ID.hex()[:12]); err == nil || !strings.Contains(err.Error(), "has several names: alias, one; ") {
		t.Errorf("an image with two names: %v", err)
	}
	if got, err := u.Remove(t.Context(), "one"); err != nil || !slices.Equal(got.Untagged, []string{"one"}) || len(got.Images) > 0 {
		t.Errorf("one of two names: %+v, %v", got, err)
	}
	got, err := u.Remove(t.Context(), string(one.ID)[:20])
	if err != nil || !slices.Equal(got.Images, []Digest{one.ID}) || !slices.Equal(got.Layers, []Digest{first.id}) || got.Bytes != int64(len(first.tar)) {
		t.Errorf("by id: %+v, %v", got, err)
	}
	if _, err := u.Remove(t.Context(), "alias"); !errors.Is(err, ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	if names := b.names(alice); !slices.Equal(names, []string{"two"}) {
		t.Errorf("left are %q", names)
	}
	if _, err := u.Remove(t.Context(), two.ID.hex()[:3]); !errors.Is(err, ErrNotFound) {
		t.Errorf("three digits: %v", err)
	}
	if _, err := u.Remove(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	if got := contents(b.dir); !slices.Equal(got, []string{"version"}) {
		t.Errorf("left are %q", got)
	}
}

func TestAnAmbiguousIDIsRefused(t *testing.T) {
	b := newBox(t)
	prefixes := map[string]string{}
	p, err := b.For(alice).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := addLayer(t.Context(), p, base); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ { // two configs whose digests begin with the same digits
		label := strings.Repeat("x", i)
		digits := digestOf(configOf(label, base)).hex()[:minPrefix]
		twin, found := prefixes[digits]
		prefixes[digits] = label
		if !found {
			continue
		}
		for _, l := range []string{label, twin} {
			if _, err := p.AddImage(t.Context(), NewImage{Config: configOf(l, base)}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.For(alice).Remove(t.Context(), digits); err == nil || !strings.Contains(err.Error(), "is ambiguous") {
			t.Errorf("the id %s: %v", digits, err)
		}
		return
	}
}

func TestAnImageInUseStays(t *testing.T) {
	b := newBox(t)
	image := b.pull(alice, "one", base)
	u := b.For(alice)
	for _, by := range []string{"sandbox box", "snapshot box/1"} {
		h, err := u.Use(t.Context(), "one", strings.ReplaceAll(by, " ", "-"))
		if err != nil {
			t.Fatal(err)
		}
		h.Close() // the use goes on
	}
	inUse := (*InUseError)(nil)
	_, err := u.Remove(t.Context(), "one")
	if !errors.As(err, &inUse) || !strings.Contains(err.Error(), "in use by sandbox-box, snapshot-box/1") {
		t.Errorf("a removal: %v", err)
	}
	b.pull(alice, "two", base, first)
	p, err := u.Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The name moves to another image.
	if _, err := p.AddImage(t.Context(), NewImage{Reference: "one", Config: configOf("two", base, first)}); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if got, err := u.Prune(t.Context()); err != nil || len(got.Images)+len(got.Layers) > 0 {
		t.Errorf("a prune: %+v, %v", got, err)
	}
	if uses, err := u.Uses(t.Context()); err != nil || len(uses) != 2 || uses[0].Image != image.ID {
		t.Errorf("the uses are %+v: %v", uses, err)
	}
	for _, by := range []string{"sandbox-box", "snapshot-box/1", "unknown"} {
		if err := u.Release(t.Context(), by); err != nil {
			t.Error(err)
		}
	}
	if got, err := u.Prune(t.Context()); err != nil || !slices.Equal(got.Images, []Digest{image.ID}) || len(got.Layers) > 0 {
		t.Errorf("a prune after the uses: %+v, %v", got, err)
	}
	if names := b.names(alice); !slices.Equal(names, []string{"one", "two"}) {
		t.Errorf("left are %q", names)
	}
}

func TestAPruneLeavesThePullsLayers(t *testing.T) {
	b := newBox(t)
	u := b.For(alice)
	p, err := u.Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := addLayer(t.Context(), p, base); err != nil {
		t.Fatal(err)
	}
	if got, err := u.Prune(t.Context()); err != nil || len(got.Layers) > 0 {
		t.Errorf("a prune during a pull: %+v, %v", got, err)
	}
	if lacks, err := p.Lacks(t.Context(), []Digest{base.id, first.id}); err != nil || !slices.Equal(lacks, []Digest{first.id}) {
		t.Errorf("the pull lacks %v: %v", lacks, err)
	}
	p.Close()
	if got, err := u.Prune(t.Context()); err != nil || !slices.Equal(got.Layers, []Digest{base.id}) {
		t.Errorf("a prune after the pull: %+v, %v", got, err)
	}
	if got := contents(b.dir); !slices.Equal(got, []string{"version"}) {
		t.Errorf("left are %q", got)
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	testhost.Concurrent(t)
	b := newBox(t)
	p, err := b.For(alice).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, w, err := os.Pipe() // a client that sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	stall, end := context.WithCancel(t.Context())
	stalled := make(chan error)
	go func() { stalled <- p.AddLayer(stall, base.id, r) }()
	testhost.Eventually(t, "the layer is being added", func() bool {
		drafts, err := os.ReadDir(b.path("drafts"))
		return err == nil && len(drafts) > 0
	})
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := addLayer(short, p, base); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second one for the user: %v", err)
	}
	b.pull(bob, "name", base) // does not wait
	end()
	if err := <-stalled; !errors.Is(err, context.Canceled) {
		t.Errorf("the first one: %v", err)
	}
}

func TestAUserHasABound(t *testing.T) {
	b := newBox(t)
	b.limits.Images, b.limits.References, b.limits.Layers = 2, 3, 2
	b.pull(alice, "one", base)
	b.pull(alice, "two", base, first)
	b.pull(bob, "one", base)
	p, err := b.For(alice).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	before := contents(b.dir)
	for want, add := range map[string]func() error{
		"has 2 layers already; remove": func() error { return addLayer(t.Context(), p, other) },
		"has 2 images already; remove": func() error {
			_, err := p.AddImage(t.Context(), NewImage{Config: configOf("three", base)})
			return err
		},
		"has 3 references already; remove": func() error {
			for _, name := range []string{"three", "four"} {
				if _, err := p.AddImage(t.Context(), NewImage{Reference: name, Config: configOf("one", base)}); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := add(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("not %q: %v", want, err)
		}
	}
	if after := contents(b.dir); len(after) != len(before)+1 {
		t.Errorf("left are %q", after)
	}
}

// A broken file of one user is an error for this user only.
func TestABrokenFileOfAUserStopsNoOther(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	b.pull(bob, "one", base)
	u := b.For(alice)
	id := digestOf(configOf("one", base)).hex()
	must(os.WriteFile(u.referencePath("broken"), []byte("{"), 0o600))
	must(os.Rename(u.path("images", id), u.path("removing", id)))
	b.pull(bob, "two", base, first)
	if _, err := Open(t.Context(), b.dir); err != nil {
		t.Error(err)
	}
	if _, err := u.Pull(t.Context()); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("the user's own pull: %v", err)
	}
	must(os.Remove(u.referencePath("broken")))
	p, err := u.Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if names := b.names(alice); len(names) > 0 {
		t.Errorf("left are %q", names)
	}
}

// Between the first step of a removal and the end, the image has a name and is gone.
func TestAnUnfinishedRemovalIsARemoval(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	u := b.For(alice)
	id := digestOf(configOf("one", base)).hex()
	must(os.Rename(u.path("images", id), u.path("removing", id)))
	if _, err := u.Use(t.Context(), "one", "box"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a use: %v", err)
	}
}
