package erase

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// tree makes directories in a new directory: wide, deep, with links, FIFOs and without permissions. All belong to a user.
func tree(t *testing.T, uid int) (dir *os.File, outside string) {
	t.Helper()
	top := t.TempDir()
	outside = filepath.Join(top, "outside")
	content := filepath.Join(top, "content")
	paths := []string{outside, content, filepath.Join(content, "closed"), filepath.Join(content, "closed", "below"), filepath.Join(content, strings.Repeat("d/", 3*liftDepth))}
	for _, path := range paths {
		if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "file"), nil, 0o400)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(content, "link")), unix.Mkfifo(filepath.Join(content, "fifo"), 0)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(content, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
	for path := top; path != "/"; path = filepath.Dir(path) { // the user reaches the tree
		err = errors.Join(err, os.Chmod(path, 0o755))
		if filepath.Dir(path) == os.TempDir() {
			break
		}
	}
	deep := filepath.Join(content, strings.Repeat("d/", 2*liftDepth))
	err = errors.Join(err, os.Chmod(deep, 0o500), os.Chmod(filepath.Join(content, "closed", "below"), 0o500), os.Chmod(filepath.Join(content, "closed"), 0))
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = os.Open(content); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir, outside
}

func checkErased(t *testing.T, dir *os.File, outside string) {
	t.Helper()
	if left, err := os.ReadDir(dir.Name()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
}

func TestSeveralErasuresOfADirectory(t *testing.T) {
	testhost.NeedRoot(t, "files of another user")
	for name, erase := range map[string]func(dir *os.File) error{
		"contents": func(dir *os.File) error { return Contents(t.Context(), dir) },
		"in use":   func(dir *os.File) error { return ContentsInUse(t.Context(), dir) },
		"as owner": func(dir *os.File) error { return ContentsAsOwner(t.Context(), dir) },
	} {
		dir, outside := tree(t, 65534)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				own, err := os.Open(dir.Name())
				if err != nil {
					t.Error(err)
					return
				}
				defer own.Close()
				if err := erase(own); err != nil && !errors.Is(err, unix.ENOTEMPTY) { // another erasure has moved a directory up
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		all.Wait()
		if err := erase(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkErased(t, dir, outside)
	}
}

// The owner of a directory is no root, whom permissions would not keep out.
func TestPermissionsDoNotKeepTheOwnerOut(t *testing.T) {
	testhost.NeedRoot(t, "another user")
	const uid = 65534
	dir, outside := tree(t, uid)
	erased := make(chan error)
	go func() {
		runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
		if _, err := unix.SetfsuidRetUid(uid); err != nil {
			erased <- err
			return
		}
		if err := Contents(t.Context(), dir); !errors.Is(err, unix.EACCES) {
			t.Errorf("without permissions: %v", err)
		}
		erased <- ContentsAsOwner(t.Context(), dir)
	}()
	if err := <-erased; err != nil {
		t.Error(err)
	}
	checkErased(t, dir, outside)
}

// An error names the entry that stays. It does not tell of the directories above, which only stay because of the entry.
func TestAnErrorNamesTheEntry(t *testing.T) {
	testhost.NeedRoot(t, "a mount")
	testhost.PrivateMounts(t)
	top := t.TempDir()
	mounts := []string{filepath.Join(top, "dir/a/b"), filepath.Join(top, "dir/a/c")}
	for _, mount := range mounts {
		if err := errors.Join(os.MkdirAll(mount, 0o700), unix.Mount("tmpfs", mount, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(mount, unix.MNT_DETACH)
	}
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	want := []string{`"dir/a/b": invalid cross-device link`, `"dir/a/c": invalid cross-device link`}
	for name, erase := range map[string]func() error{
		"contents": func() error { return Contents(t.Context(), dir) },
		"as owner": func() error { return ContentsAsOwner(t.Context(), dir) },
		"entry":    func() error { return Entry(t.Context(), dir, "dir") },
	} {
		err := erase()
		if !errors.Is(err, unix.EXDEV) || !errors.Is(err, unix.ENOTEMPTY) || !slices.Contains(want, err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
