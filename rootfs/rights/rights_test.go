package rights

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The rights are those of the call alone.
func TestRightsEndWithTheCall(t *testing.T) {
	testhost.NeedRoot(t, "another user reads files")
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/roots", "")
	testhost.WriteFile(t, dir+"/group", "")
	if err := errors.Join(os.Chmod(dir+"/roots", 0o600), os.Chown(dir+"/group", 0, 2002), os.Chmod(dir+"/group", 0o640), os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	before := testhost.ThreadIDs(t)
	err := With(2000, []uint32{2001, 2002}, func() error {
		if _, err := os.ReadFile(dir + "/roots"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("root's file: %v", err)
		}
		if _, err := os.ReadFile(dir + "/group"); err != nil {
			t.Errorf("a file of a group of the user's: %v", err)
		}
		return errOwn
	})
	if !errors.Is(err, errOwn) {
		t.Errorf("the call's own error: %v", err)
	}
	if _, err := os.ReadFile(dir + "/roots"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if after := testhost.ThreadIDs(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

var errOwn = errors.New("of the call")

// A process that keeps its capabilities whatever its ids can't take a user's
// rights.
func TestProcessThatKeepsItsRightsTakesNoOthers(t *testing.T) {
	testhost.NeedRoot(t, "a thread gets another user")
	runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
	const noSetuidFixup = 1 << 2
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	called := false
	err := With(2000, []uint32{2001}, func() error { called = true; return nil })
	if called || err == nil || !strings.Contains(err.Error(), "SECBIT_NO_SETUID_FIXUP") {
		t.Errorf("called: %v, error %v", called, err)
	}
}
