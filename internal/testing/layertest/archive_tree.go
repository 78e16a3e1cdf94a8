package layertest

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Extracted returns a tree after an archive is extracted over it, without hard links.
// Unlike Extract, Extracted needs no directories and finds no fault: the tree may lack
// some that the archive wants.
func Extracted(tree map[string]string, archive io.Reader, parts Parts) (map[string]string, error) {
	x := extraction{tree: maps.Clone(tree), made: map[string]bool{}, parts: parts}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return x.tree, nil
		}
		if err != nil {
			return nil, err
		}
		if err := x.add(r, h); err != nil {
			return nil, fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

// An extraction is a tree over which an archive is extracted.
type extraction struct {
	tree  map[string]string
	made  map[string]bool
	parts Parts
}

func (x *extraction) add(r io.Reader, h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	dir, base := path.Split(name)
	if base == ".wh..wh..opq" {
		x.remove(func(p string) bool { return strings.HasPrefix(p, dir) && !x.made[p] })
		return nil
	}
	if gone, ok := strings.CutPrefix(base, ".wh."); ok {
		x.remove(func(p string) bool { return p == dir+gone || strings.HasPrefix(p, dir+gone+"/") })
		return nil
	}
	x.made[name] = true
	if h.Typeflag == tar.TypeLink {
		x.tree[name] = x.tree[h.Linkname]
		return nil
	}
	n := node{mode: uint32(h.Mode), uid: h.Uid, gid: h.Gid, link: h.Linkname, mtime: h.ModTime, xattrs: xattrsIn(h)}
	if h.Typeflag != tar.TypeDir {
		x.remove(func(p string) bool { return strings.HasPrefix(p, name+"/") })
	}
	switch h.Typeflag {
	case tar.TypeReg:
		var err error
		if n.data, err = io.ReadAll(r); err != nil {
			return err
		}
		n.mode |= unix.S_IFREG
	case tar.TypeDir:
		n.mode |= unix.S_IFDIR
	case tar.TypeSymlink:
		n.mode |= unix.S_IFLNK
	case tar.TypeFifo:
		n.mode |= unix.S_IFIFO
	default:
		return fmt.Errorf("type %q", h.Typeflag)
	}
	if h.Typeflag != tar.TypeDir || x.parts&Directories != 0 {
		x.tree[name] = n.describe(x.parts)
	} else {
		delete(x.tree, name) // a file was there
	}
	return nil
}

func (x *extraction) remove(which func(path string) bool) {
	for p := range x.tree {
		if which(p) {
			delete(x.tree, p)
		}
	}
}

func xattrsIn(h *tar.Header) string {
	var all []string
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			all = append(all, attribute(name, value))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}
