package files

import (
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A Tree is the served files. An [os.Root] is one.
type Tree interface {
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Mkdir(name string, perm fs.FileMode) error
	MkdirAll(name string, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	RemoveAll(name string) error
	Symlink(target, name string) error
	Readlink(name string) (string, error)
	Chmod(name string, mode fs.FileMode) error
}

// All is the Tree of all files that this process can see, by absolute paths: inside a
// sandbox, where it may use all that the kernel gives it.
func All() Tree { return wholeTree{} }

type wholeTree struct{}

func (wholeTree) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (wholeTree) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (wholeTree) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (wholeTree) Mkdir(name string, perm fs.FileMode) error    { return os.Mkdir(name, perm) }
func (wholeTree) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (wholeTree) Rename(from, to string) error                 { return os.Rename(from, to) }
func (wholeTree) Remove(name string) error                     { return os.Remove(name) }
func (wholeTree) RemoveAll(name string) error                  { return os.RemoveAll(name) }
func (wholeTree) Symlink(target, name string) error            { return os.Symlink(target, name) }
func (wholeTree) Readlink(name string) (string, error)         { return os.Readlink(name) }
func (wholeTree) Chmod(name string, mode fs.FileMode) error    { return os.Chmod(name, mode) }

// nameBelow is the name in a tree that is seen at prefix, of one that the client
// uses. There is nothing beside the tree.
func nameBelow(prefix, name string) (string, error) {
	if prefix == "" {
		return name, nil
	}
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(prefix, "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return "", unix.ENOENT
	}
	if rest = strings.TrimLeft(rest, "/"); rest == "" {
		return ".", nil
	}
	return rest, nil
}
