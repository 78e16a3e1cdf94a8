package store

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func memory(t testing.TB, l Limits) *os.File {
	t.Helper()
	asRoot(t)
	f, err := Memory(l)
	return closing(t, f, err)
}

func TestMemoryHoldsItsBytes(t *testing.T) {
	f := memory(t, Limits{Bytes: 1 << 20, Files: 100})
	switch written, err := fill(t, in(f)+"/file", 2<<20); {
	case !errors.Is(err, unix.ENOSPC):
		t.Errorf("2 MiB in a store of one: %d bytes written, %v", written, err)
	case written != 1<<20:
		t.Errorf("a store of 1 MiB took %d bytes", written)
	}
	if used, total := usage(t, f); used.Bytes != 1<<20 || total.Bytes != 1<<20 {
		t.Errorf("when it is full, %d of %d bytes are used", used.Bytes, total.Bytes)
	}
}

func TestMemoryHoldsItsFiles(t *testing.T) {
	f := memory(t, Limits{Bytes: 1 << 20, Files: 100})
	if made, err := create(in(f), 200); !errors.Is(err, unix.ENOSPC) || made != 99 {
		t.Errorf("a store of 100 files, its root among them, took %d more: %v", made, err)
	}
	if used, total := usage(t, f); used.Files != 100 || total.Files != 100 {
		t.Errorf("when it is full, %d of %d files are used", used.Files, total.Files)
	}
}

// It is reached by its descriptor alone, and has neither devices nor set-uid
// programs.
func TestMemoryIsDetachedAndClosed(t *testing.T) {
	old := unix.Umask(0o777)
	defer unix.Umask(old)
	checkClosed(t, memory(t, Limits{Bytes: 1 << 20, Files: 100}))
}

// For tmpfs 0 is no limit.
func TestStoreWithoutALimitIsRefused(t *testing.T) {
	for _, l := range []Limits{{0, 100}, {1 << 20, 0}, {-1, 100}, {1 << 20, -1}} {
		f, err := Memory(l)
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "more than 0") {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

func TestRefusedMountSaysWhatTheKernelSays(t *testing.T) {
	asRoot(t)
	f, err := mount("tmpfs", "store", [2]string{"nonsense", "1"})
	if err == nil {
		f.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "Unknown parameter 'nonsense'") {
		t.Errorf("an unknown option: %v", err)
	}
}
