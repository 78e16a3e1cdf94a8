// Lister describes each file below a directory, in a JSON object: type and mode, owner, time, links, size, digest of
// the content, target, device and extended attributes. Further arguments are paths to leave out.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := list(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "lister:", err)
		os.Exit(1)
	}
}

func list(root string, left []string) error {
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		name := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if errors.Is(err, fs.ErrPermission) { // the directory is in the list already
			all[name] += " unreadable"
			return fs.SkipDir
		}
		if err != nil {
			return err
		}
		if slices.Contains(left, name) {
			return skip(path)
		}
		all[name], err = describe(path)
		return err
	})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

func skip(path string) error {
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return fs.SkipDir
	}
	return nil
}

func describe(path string) (string, error) {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return "", fmt.Errorf("stat %s: %w", path, err)
	}
	text := fmt.Sprintf("%06o %d:%d time %d.%09d", s.Mode, s.Uid, s.Gid, s.Mtim.Sec, s.Mtim.Nsec)
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		text += fmt.Sprintf(" links %d size %d", s.Nlink, s.Size)
		sum, err := digest(path)
		if errors.Is(err, fs.ErrPermission) {
			return text + " unreadable", nil
		}
		if err != nil {
			return "", err
		}
		text += " content " + sum
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf(" links %d target %q", s.Nlink, target)
	case unix.S_IFCHR, unix.S_IFBLK:
		text += fmt.Sprintf(" device %d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
	}
	attributes, err := attributesOf(path)
	return text + attributes, err
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// attributesOf leaves out attributes that only the host's root sees.
func attributesOf(path string) (text string, err error) {
	names := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, names)
	if err != nil {
		return "", fmt.Errorf("attributes of %s: %w", path, err)
	}
	found := strings.FieldsFunc(string(names[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(found)
	for _, name := range found {
		if strings.HasPrefix(name, "trusted.") {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", fmt.Errorf("attribute %s of %s: %w", name, path, err)
		}
		text += fmt.Sprintf(" %s=%q", name, value[:n])
	}
	return text, nil
}
