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

// Tree describes all paths below a directory: a line for each path, in which strings are
// quoted. parts choose the facts.
func Tree(t testing.TB, dir string, parts Parts) map[string]string {
	t.Helper()
	return Readable(t, dir, parts, func(path string, err error) {
		t.Fatalf("describe %s: %s: %v", dir, path, err)
	})
}

// Readable is Tree without the paths that cannot be read. It calls unread with each of
// these, relative to the directory.
func Readable(t testing.TB, dir string, parts Parts, unread func(path string, err error)) map[string]string {
	t.Helper()
	all := map[string]string{}
	names := map[inode]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(dir, path)
		if relErr != nil {
			return relErr
		}
		if err == nil && name != "." {
			err = addPath(all, names, path, name, parts)
		}
		if err != nil {
			unread(name, err)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("describe %s: %v", dir, err)
	}
	return all
}

// addPath describes one path of a tree. names are the first names of the files so far.
func addPath(all map[string]string, names map[inode]string, path, name string, parts Parts) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir && parts&Directories == 0 {
		return nil
	}
	text, err := describe(path, &st, parts)
	if err != nil {
		return err
	}
	if parts&Links != 0 && !isDir && st.Nlink > 1 {
		// An overlay counts names that it does not show, too.
		if first, ok := names[inode{st.Dev, st.Ino}]; ok {
			text += fmt.Sprintf(" is %q", first)
		} else {
			names[inode{st.Dev, st.Ino}] = name
		}
	}
	all[name] = text
	return nil
}

type inode struct{ dev, ino uint64 }

// Parts are facts about a path; its type and content are always told, and whether its
// owner may execute it.
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
	n := node{mode: st.Mode, uid: int(st.Uid), gid: int(st.Gid), mtime: time.Unix(st.Mtim.Unix())}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		n.data, err = os.ReadFile(path)
	case unix.S_IFLNK:
		n.link, err = os.Readlink(path)
	}
	if err == nil && parts&Owners != 0 {
		n.xattrs, err = xattrs(path)
	}
	return n.describe(parts), err
}

// DescribeFile is Tree's description of a file with this content, without any Parts.
func DescribeFile(content []byte) string {
	n := node{mode: unix.S_IFREG | 0o644, data: content}
	return n.describe(0)
}

// A node has the facts about a path.
type node struct {
	mode     uint32 // with its type
	uid, gid int
	data     []byte // of a file
	link     string // of a symbolic link
	xattrs   string
	mtime    time.Time
}

func (n *node) describe(parts Parts) string {
	var b strings.Builder
	switch n.mode & unix.S_IFMT {
	case unix.S_IFREG:
		fmt.Fprintf(&b, "file %v %d %.100q %x", n.mode&0o100 != 0, len(n.data), n.data, sha256.Sum256(n.data))
	case unix.S_IFLNK:
		fmt.Fprintf(&b, "link %q", n.link)
	default:
		fmt.Fprintf(&b, "type %o", n.mode&unix.S_IFMT)
	}
	if parts&Owners != 0 {
		fmt.Fprintf(&b, " %d:%d %o%s", n.uid, n.gid, n.mode&0o7777, n.xattrs)
	}
	if parts&Times != 0 && n.mode&unix.S_IFMT != unix.S_IFDIR {
		// A directory's time is that of its last entry.
		b.WriteString(" " + n.mtime.UTC().Format(time.RFC3339Nano))
	}
	return b.String()
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
		all = append(all, attribute(name, string(value[:n])))
	}
	slices.Sort(all)
	return strings.Join(all, ""), nil
}

func attribute(name, value string) string { return fmt.Sprintf(" %q=%q", name, value) }

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
