package sandboxtest

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// A node is a directory, a regular file or a symbolic link.
type node struct {
	mode fs.FileMode
	// data is the content of a file, or the target of a link.
	data    string
	modTime time.Time
}

// isSame compares all but the time.
func (n node) isSame(o node) bool { return n.mode == o.mode && n.data == o.data }

// A tree has nodes by their paths. It leaves out its top, and files of other types.
type tree map[string]node

// readTree reads a directory.
func readTree(root *os.Root) (tree, error) {
	t := tree{}
	return t, fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n := node{mode: info.Mode(), modTime: info.ModTime()}
		switch n.mode.Type() {
		case 0:
			content, err := root.ReadFile(name)
			if err != nil {
				return err
			}
			n.data = string(content)
		case fs.ModeSymlink:
			if n.data, err = root.Readlink(name); err != nil {
				return err
			}
		case fs.ModeDir:
		default:
			return nil
		}
		t[name] = n
		return nil
	})
}

// readDir reads a directory of the host.
func readDir(dir string) (tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return readTree(root)
}

// changed are the paths at which two trees differ, in order.
func changed(a, b tree) (paths []string) {
	for name, n := range a {
		if other, ok := b[name]; !ok || !n.isSame(other) {
			paths = append(paths, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			paths = append(paths, name)
		}
	}
	slices.Sort(paths)
	return paths
}

// subtree is the part of a tree below a directory, with paths relative to the directory.
func (t tree) subtree(dir string) tree {
	part := tree{}
	for name, n := range t {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok {
			part[rest] = n
		}
	}
	return part
}

// removeBelow removes all below a directory.
func (t tree) removeBelow(dir string) {
	maps.DeleteFunc(t, func(name string, _ node) bool { return strings.HasPrefix(name, dir+"/") })
}

// movedTo is the tree with its top at a directory.
func (t tree) movedTo(dir string) tree {
	moved := tree{}
	for name, n := range t {
		moved[path.Join(dir, name)] = n
	}
	return moved
}

// subset has the nodes of some paths.
func (t tree) subset(paths []string) tree {
	part := maps.Clone(t)
	maps.DeleteFunc(part, func(name string, _ node) bool { _, found := slices.BinarySearch(paths, name); return !found })
	return part
}

// write makes the paths of a directory, which are in order, as they are in the tree.
func (t tree) write(root *os.Root, paths []string) error {
	for _, name := range slices.Backward(paths) {
		if n, ok := t[name]; !ok || !n.mode.IsDir() {
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	for _, name := range paths {
		if n, ok := t[name]; ok {
			if err := n.write(root, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n node) write(root *os.Root, name string) error {
	if n.mode.Type() == fs.ModeSymlink {
		return root.Symlink(n.data, name)
	}
	if n.mode.IsDir() {
		if info, err := root.Lstat(name); err == nil && !info.IsDir() {
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, n.mode.Perm())
	}
	if err := root.WriteFile(name, []byte(n.data), 0o600); err != nil {
		return err
	}
	if err := root.Chmod(name, n.mode.Perm()); err != nil {
		return err
	}
	return root.Chtimes(name, n.modTime, n.modTime)
}
