package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// A user with an image, and a user without, ask the same: the second one gets the answers of an empty store.
func TestAUserLearnsNothingOfOtherUsersImages(t *testing.T) {
	b, empty := newBox(t), newBox(t)
	secret := b.pull(alice, "secret", base, first)
	h, err := b.For(alice).Use(t.Context(), "secret", "box")
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	config := configOf("secret", base, first)
	probes := map[string]func(User, *Pull) (any, error){
		"list":         func(u User, _ *Pull) (any, error) { return u.Images(t.Context()) },
		"uses":         func(u User, _ *Pull) (any, error) { return u.Uses(t.Context()) },
		"find by name": func(u User, _ *Pull) (any, error) { return u.Find(t.Context(), "secret") },
		"find by id":   func(u User, _ *Pull) (any, error) { return u.Find(t.Context(), string(secret.ID)) },
		"use":          func(u User, _ *Pull) (any, error) { return u.Use(t.Context(), string(secret.ID), "box") },
		"use by name":  func(u User, _ *Pull) (any, error) { return u.Use(t.Context(), "secret", "box") },
		"remove":       func(u User, _ *Pull) (any, error) { return u.Remove(t.Context(), "secret") },
		"remove by id": func(u User, _ *Pull) (any, error) { return u.Remove(t.Context(), string(secret.ID)) },
		"prune":        func(u User, _ *Pull) (any, error) { return u.Prune(t.Context()) },
		"release":      func(u User, _ *Pull) (any, error) { return nil, u.Release(t.Context(), "box") },
		"verify":       func(u User, _ *Pull) (any, error) { return nil, u.Verify(t.Context(), string(secret.ID)) },
		"lacks":        func(_ User, p *Pull) (any, error) { return p.Lacks(t.Context(), []Digest{base.id, first.id}) },
		"add the image": func(_ User, p *Pull) (any, error) {
			return p.AddImage(t.Context(), NewImage{Reference: "x", Config: config})
		},
		"add other bytes": func(_ User, p *Pull) (any, error) {
			return nil, addLayer(t.Context(), p, layer{base.id, nil, other.compressed})
		},
		"add no bytes": func(_ User, p *Pull) (any, error) { return nil, addLayer(t.Context(), p, layer{base.id, nil, nil}) },
	}
	for name, probe := range probes {
		var answers []string
		for _, s := range []*Store{empty.Store, b.Store} {
			p, err := s.For(bob).Pull(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			value, err := probe(s.For(bob), p)
			p.Close()
			answers = append(answers, strings.ReplaceAll(fmt.Sprintf("%+v, %v", value, err), s.dir, ""))
		}
		if answers[0] != answers[1] {
			t.Errorf("%s: %s\nand in an empty store: %s", name, answers[1], answers[0])
		}
	}
	if _, err := b.For(alice).Remove(t.Context(), "secret"); !errors.As(err, new(*InUseError)) {
		t.Errorf("the owner's use has ended: %v", err)
	}
}

// The right to a layer needs all of its bytes, also if the layer is in the store.
func TestARightNeedsTheWholeLayer(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	p, err := b.For(bob).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	f, err := base.content()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.AddLayer(t.Context(), base.id, f); err != nil {
		t.Fatal(err)
	}
	if at, err := f.Seek(0, io.SeekCurrent); err != nil || at != int64(len(base.compressed)) {
		t.Errorf("%d bytes were read: %v", at, err)
	}
	if lacks, err := p.Lacks(t.Context(), []Digest{base.id}); err != nil || len(lacks) > 0 {
		t.Errorf("the right is missing: %v, %v", lacks, err)
	}
	if got := strings.Count(strings.Join(contents(b.dir), " "), "/tar"); got != 1 {
		t.Errorf("the layer is on disk %d times", got)
	}
}

func TestRootNeedsNoProof(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	p, err := b.For(root).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if lacks, err := p.Lacks(t.Context(), []Digest{base.id, first.id}); err != nil || !slices.Equal(lacks, []Digest{first.id}) {
		t.Errorf("root lacks %v: %v", lacks, err)
	}
	if _, err := p.AddImage(t.Context(), NewImage{Reference: "roots", Config: configOf("roots", base)}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.For(alice).Remove(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := b.For(root).Verify(t.Context(), "roots"); err != nil {
		t.Errorf("root has lost the layer: %v", err)
	}
}

// The removal of a user's last right removes the bytes, and no other does.
func TestBytesStayForOtherUsers(t *testing.T) {
	b := newBox(t)
	one := b.pull(alice, "one", base, first)
	b.pull(bob, "one", base, first)
	for _, uid := range []uint32{alice, bob} {
		if _, err := os.Stat(b.imageDir(one.ID)); err != nil {
			t.Fatalf("before the removal of %d: %v", uid, err)
		}
		got, err := b.For(uid).Remove(t.Context(), "one")
		if err != nil || got.Bytes != int64(len(base.tar)+len(first.tar)) || len(got.Layers) != 2 {
			t.Errorf("the removal of %d tells %+v: %v", uid, got, err)
		}
	}
	if got := contents(b.dir); !slices.Equal(got, []string{"version"}) {
		t.Errorf("left are %q", got)
	}
}

// Root's pull does not depend on a user that removes a layer meanwhile.
func TestAUserCannotEndAPullOfRoot(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	p, err := b.For(root).Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if lacks, err := p.Lacks(t.Context(), []Digest{base.id, base.id}); err != nil || len(lacks) > 0 {
		t.Fatalf("root lacks %v: %v", lacks, err)
	}
	if _, err := b.For(alice).Remove(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.AddImage(t.Context(), NewImage{Reference: "two", Config: configOf("two", base)}); err != nil {
		t.Error(err)
	}
}
