package store

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// hookContext is a context that calls a function whenever it is asked for its error.
type hookContext struct {
	context.Context
	whenAsked func()
}

func (a hookContext) Err() error {
	a.whenAsked()
	return a.Context.Err()
}

// A list of many images takes long, and other users must not wait for it.
func TestAListLeavesTheLock(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	b.pull(alice, "two", base, first)
	free, held := 0, 0
	ctx := hookContext{t.Context(), func() {
		f, err := os.OpenFile(b.path("lock"), os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			free++
		case errors.Is(err, unix.EWOULDBLOCK):
			held++
		default:
			t.Error(err)
		}
	}}
	all, err := b.For(alice).Images(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if free != len(all) || held > 0 {
		t.Errorf("the lock was free before %d of %d images, and held before %d", free, len(all), held)
	}
}

// An image that is removed during a list is not in the list, and stays unmarked.
func TestAListDuringARemoval(t *testing.T) {
	b := newBox(t)
	b.pull(alice, "one", base)
	b.pull(alice, "two", base, first)
	removed := false
	ctx := hookContext{t.Context(), func() {
		if removed {
			return
		}
		removed = true
		for _, name := range []string{"one", "two"} {
			if _, err := b.For(alice).Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
	}}
	if all, err := b.For(alice).Images(ctx); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}
