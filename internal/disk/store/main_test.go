package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestMain holds that no test leaves a descriptor or a mount.
func TestMain(m *testing.M) { os.Exit(testhost.RunMounting(m)) }

// asRoot skips where mounts cannot be made.
func asRoot(t testing.TB) { t.Helper(); testhost.NeedRoot(t, "mounts are made") }

// closing closes a store at the test's end.
func closing(t testing.TB, f *os.File, err error) *os.File {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// fill writes to a file until something stops it, and returns how much it wrote.
func fill(t testing.TB, path string, most int64) (int64, error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for i := range block {
		block[i] = byte(i) | 1
	}
	var written int64
	for written < most {
		n, err := f.Write(block)
		if written += int64(n); err != nil {
			return written, err
		}
	}
	return written, f.Sync()
}

// create makes empty files until something stops it, and returns how many.
func create(dir string, most int) (int, error) {
	for i := range most {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return i, err
		}
		f.Close()
	}
	return most, nil
}

func usage(t testing.TB, f *os.File) (used, total Limits) {
	t.Helper()
	used, total, err := Usage(f)
	if err != nil {
		t.Fatal(err)
	}
	return used, total
}

func modeAndOwner(t testing.TB, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatalf("stat %s: %v", path, err)
	}
	return fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
}

// checkClosed holds that a store is for its descriptor alone.
func checkClosed(t testing.TB, f *os.File) {
	t.Helper()
	if got, want := modeAndOwner(t, in(f)), "40700 0:0"; got != want {
		t.Errorf("the root of a store is %s, want %s", got, want)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV); st.Flags&want != want {
		t.Errorf("flags of the mount: %#x", st.Flags)
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("a program that is executed has the store: %#x, %v", flags, err)
	}
	if path, err := os.Readlink(in(f)); err != nil || path != "/" {
		t.Errorf("the store is at %q, %v", path, err)
	}
}
