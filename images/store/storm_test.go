package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Many processes pull, use, verify and remove at a time. Each image that one of them pulls stays whole as long
// as it is in use, and at the end nothing is left.
func TestManyUseTheStoreAtATime(t *testing.T) {
	testhost.Concurrent(t)
	b := newBox(t)
	const workers, rounds = 6, 8
	var all sync.WaitGroup
	for n := range workers {
		all.Go(func() {
			for range rounds {
				if err := storm(t.Context(), b.dir, uint32(alice+n%2), fmt.Sprint("box-", n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, uid := range []uint32{alice, bob} {
		for _, name := range b.names(uid) {
			if name == "<none>" {
				continue
			}
			if _, err := b.For(uid).Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
		if _, err := b.For(uid).Prune(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if got := contents(b.dir); !slices.Equal(got, []string{"version"}) {
		t.Errorf("left are %q", got)
	}
}

// storm is the life of one process: it pulls an image, uses it, and removes an image.
func storm(ctx context.Context, dir string, uid uint32, by string) error {
	s, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	u := s.For(uid)
	layers := []layer{base, first, other}
	rand.Shuffle(len(layers), func(i, j int) { layers[i], layers[j] = layers[j], layers[i] })
	layers = layers[:1+rand.N(len(layers))]
	name := fmt.Sprint("image-", rand.N(3))
	image, err := pull(ctx, u, name, layers...)
	if err != nil {
		return err
	}
	h, err := u.Use(ctx, string(image.ID), by)
	if errors.Is(err, ErrNotFound) {
		return nil // another process has removed the image
	}
	if err != nil {
		return err
	}
	h.Close()
	// In use, no other process can remove the image.
	verified := u.Verify(ctx, string(image.ID))
	if _, err := u.Remove(ctx, string(image.ID)); !errors.As(err, new(*InUseError)) && len(image.References) < 2 {
		verified = errors.Join(verified, fmt.Errorf("a removal of an image in use: %w", err))
	}
	if err := errors.Join(verified, u.Release(ctx, by)); err != nil {
		return err
	}
	if rand.N(2) == 0 {
		_, err = u.Prune(ctx)
	} else if _, err = u.Remove(ctx, name); errors.Is(err, ErrNotFound) || errors.As(err, new(*InUseError)) {
		err = nil
	}
	return err
}
