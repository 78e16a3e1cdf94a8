package index_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// listing describes each path of a tree: type, mode, owner, links, device, time, attributes and
// content.
func listing(t testing.TB, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(filepath.Clean(path), filepath.Clean(root))
		all["/"+strings.TrimPrefix(below, "/")] = describe(t, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func describe(t testing.TB, path string) string {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		t.Fatal(path, err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%06o %d:%d time %d.%09d", s.Mode, s.Uid, s.Gid, s.Mtim.Sec, s.Mtim.Nsec)
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, " links %d size %d content %x", s.Nlink, s.Size, sha256.Sum256(b))
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, " links %d target %q", s.Nlink, target)
	case unix.S_IFCHR, unix.S_IFBLK:
		fmt.Fprintf(&text, " device %d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
	}
	for _, name := range attributes(t, path) {
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Fatal(path, name, err)
		}
		fmt.Fprintf(&text, " %s=%q", name, value[:n])
	}
	return text.String()
}

func attributes(t testing.TB, path string) []string {
	t.Helper()
	names := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, names)
	if err != nil {
		t.Fatal(path, err)
	}
	found := strings.FieldsFunc(string(names[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(found)
	return found
}
