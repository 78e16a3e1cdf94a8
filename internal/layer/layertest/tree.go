package layertest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Tree describes all that is below a directory: a line for each path, in which
// strings are quoted. Parts says what of it is told.
func Tree(t testing.TB, dir string, parts Parts) map[string]string {
	t.Helper()
	all := map[string]string{}
	names := map[inode]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		if d.IsDir() && parts&Directories == 0 {
			return nil
		}
		text, err := describe(path, &st, parts)
		if parts&Links != 0 && !d.IsDir() && st.Nlink > 1 {
			// An overlay counts names that it does not show, too.
			if first, ok := names[inode{st.Dev, st.Ino}]; ok {
				text += fmt.Sprintf(" is %q", first)
			} else {
				names[inode{st.Dev, st.Ino}] = name
			}
		}
		all[name] = text
		return err
	})
	if err != nil {
		t.Fatalf("describe %s: %v", dir, err)
	}
	return all
}

type inode struct{ dev, ino uint64 }

// Parts of what there is to tell of a path; its type and content are always
// told, and whether its owner may execute it.
type Parts int

// The parts.
const (
	Directories Parts = 1 << iota
	Owners            // with modes and extended attributes
	Times
	Links // hard links
	All   = Directories | Owners | Times | Links
)

func describe(path string, st *unix.Stat_t, parts Parts) (string, error) {
	var b strings.Builder
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "file %v %d %.100q %x", st.Mode&0o100 != 0, len(data), data, sha256.Sum256(data))
	case unix.S_IFLNK:
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "link %q", to)
	default:
		fmt.Fprintf(&b, "type %o", st.Mode&unix.S_IFMT)
	}
	if parts&Owners != 0 {
		attributes, err := xattrs(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, " %d:%d %o%s", st.Uid, st.Gid, st.Mode&0o7777, attributes)
	}
	if parts&Times != 0 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		// A directory's time is that of its last entry.
		b.WriteString(" " + time.Unix(st.Mtim.Unix()).UTC().Format(time.RFC3339Nano))
	}
	return b.String(), nil
}

func xattrs(path string) (string, error) {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		return "", fmt.Errorf("list attributes of %s: %w", path, err)
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", fmt.Errorf("attribute %s of %s: %w", name, path, err)
		}
		all = append(all, fmt.Sprintf(" %q=%q", name, value[:n]))
	}
	slices.Sort(all)
	return strings.Join(all, ""), nil
}

// Same fails the test unless two trees are equal.
func Same(t testing.TB, got, want map[string]string) {
	t.Helper()
	for path, text := range want {
		if got[path] != text {
			t.Errorf("%q is\n%.900s\nand not\n%.900s", path, got[path], text)
		}
	}
	for path, text := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%q is there, %.900s, and should not be", path, text)
		}
	}
}
