package descriptor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

func TestLocksOfOpenFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	open := func(how descriptor.Hold) (*os.File, error) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // do not wait
		return descriptor.OpenLocked(ctx, path, os.O_RDWR|os.O_CREATE, how)
	}
	one, err := open(descriptor.Shared)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	two, err := open(descriptor.Shared)
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	if _, err := open(descriptor.Exclusive); !errors.Is(err, context.Canceled) {
		t.Errorf("the exclusive lock beside two shared ones: %v", err)
	}
	if got, err := descriptor.TryLock(one); got || err != nil {
		t.Errorf("the exclusive lock beside a shared one: %v, %v", got, err)
	}
	descriptor.Unlock(two)
	if got, err := descriptor.TryLock(one); !got || err != nil {
		t.Errorf("the exclusive lock: %v, %v", got, err)
	}
}

func TestAFileLosesItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	has := func(want bool) {
		t.Helper()
		if got, err := descriptor.HasName(f); got != want || err != nil {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	has(true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	has(false)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	has(false)
}

func TestAWaitForALockHasABound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	holder, err := descriptor.OpenLocked(t.Context(), path, os.O_RDWR|os.O_CREATE, descriptor.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	f, err := descriptor.OpenLockedWithin(50*time.Millisecond, path, os.O_RDWR, descriptor.Exclusive)
	if f != nil || err == nil || !strings.Contains(err.Error(), path+": other processes have held the lock for 50ms") {
		t.Errorf("%v, %v", f, err)
	}
	descriptor.Unlock(holder)
	if f, err = descriptor.OpenLockedWithin(time.Minute, path, os.O_RDWR, descriptor.Exclusive); err != nil {
		t.Fatal(err)
	}
	f.Close()
}
