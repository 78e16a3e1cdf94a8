// Package layertest has real overlays, and trees to compare, for tests of the
// packages that read layers.
package layertest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Overlay is an overlay as a sandbox has it, with a single layer.
type Overlay struct {
	Lower, Upper, Merged string
	work                 string
}

// New makes the directories of an overlay on a file system of their own. The
// test's thread moves into a mount namespace of its own, which ends with the
// test. It skips where mounts cannot be made.
func New(t testing.TB) *Overlay {
	t.Helper()
	testhost.PrivateMounts(t)
	dir, err := os.MkdirTemp("", "layer") // t.TempDir may have a comma in its name
	check(t, err)
	t.Cleanup(func() { os.Remove(dir) })
	mount(t, "tmpfs", dir, "mode=755")
	o := &Overlay{dir + "/lower", dir + "/upper", dir + "/merged", dir + "/work"}
	for _, d := range []string{o.Lower, o.Upper, o.Merged, o.work} {
		check(t, os.Mkdir(d, 0o755))
	}
	return o
}

// Mount shows the lower directory, which is not to change from now on, at Merged.
func (o *Overlay) Mount(t testing.TB) {
	t.Helper()
	mount(t, "overlay", o.Merged, "redirect_dir=nofollow,metacopy=off,index=off,lowerdir="+o.Lower+",upperdir="+o.Upper+",workdir="+o.work)
}

// Stack is the writes to the overlay.
func (o *Overlay) Stack(t testing.TB) *layer.Stack {
	t.Helper()
	return &layer.Stack{Layers: []layer.Layer{{Dir: open(t, o.Upper)}}, Base: open(t, o.Lower)}
}

// Busy does the same to a directory again and again, on a thread that is not in
// the test's mount namespace, until the test ends.
func Busy(t testing.TB, dir string, do func(fd int)) {
	t.Helper()
	f, err := os.Open(dir)
	check(t, err)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				do(int(f.Fd()))
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		f.Close()
	})
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func mount(t testing.TB, fsType, dir, data string) {
	t.Helper()
	if err := unix.Mount(fsType, dir, fsType, 0, data); err != nil {
		t.Fatalf("mount %s on %s: %v", fsType, filepath.Base(dir), err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}
