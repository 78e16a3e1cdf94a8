package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestMain holds that no test leaves a descriptor.
func TestMain(m *testing.M) { os.Exit(testhost.Run(m)) }

// asRoot skips where file systems can't be watched.
func asRoot(t testing.TB) { t.Helper(); testhost.NeedRoot(t, "file systems are watched") }

// memory is a file system of its own, mounted nowhere, and its directory.
func memory(t testing.TB) (top Root, dir string) {
	t.Helper()
	asRoot(t)
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return reopened(t, fd)
}

// bound is a mount of a directory, attached nowhere, and the directory's place
// there.
func bound(t testing.TB, dir string) (top Root, at string) {
	t.Helper()
	asRoot(t)
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return reopened(t, fd)
}

// reopened opens the top of a detached mount, which stays there until the end of
// the test, for reading.
func reopened(t testing.TB, fd int) (top Root, at string) {
	t.Helper()
	t.Cleanup(func() { unix.Close(fd) })
	at = fmt.Sprintf("/proc/self/fd/%d", fd)
	return func() (*os.File, error) { return os.Open(at) }, at
}

func group(t testing.TB) *Group {
	t.Helper()
	asRoot(t)
	g, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	testhost.CloseAfter(t, g)
	return g
}

func watching(t testing.TB, add func(Root) (*Watch, error), top Root) *Watch {
	t.Helper()
	w, err := add(top)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func record(t testing.TB, watches ...*Watch) *Recording {
	t.Helper()
	r, err := Record(watches...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// must stops the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	must(t, err)
	_, err = f.WriteString("x")
	must(t, err)
	must(t, f.Close())
}

func in(dir string, names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
