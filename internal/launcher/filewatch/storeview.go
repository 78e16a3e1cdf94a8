package filewatch

import (
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/watch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// areaTargets are where a sandbox sees the directories of its own that are below
// area in the store.
var areaTargets = map[string]string{"workspace": spec.WorkspacePath, "home": spec.HomePath, "tmp": "/tmp", "var-tmp": "/var/tmp", "run": "/run"}

// A storeView shows changes in a store as the sandbox sees them: a change of an upper
// layer is a change of an overlay.
type storeView struct {
	roots  record.Roots
	image  OpenImage
	top    *os.File
	record record.Record
	places []record.Place
	// opened are the trees' directories on the host, the image of the root, and the images of a fork's
	// snapshot, by name. They are opened when they are needed; nil if that fails.
	opened map[string]*os.File
}

func newStoreView(box *record.Sandbox, image OpenImage, top *os.File) *storeView {
	r := box.Current()
	return &storeView{roots: box.Roots, image: image, top: top, record: r, places: r.Places(), opened: map[string]*os.File{}}
}

func (v *storeView) close() {
	descriptor.Close(slices.Collect(maps.Values(v.opened))...)
}

// kind is the kind of a change, and the path in the sandbox. The path is empty if the
// sandbox does not see the file.
func (v *storeView) kind(c watch.Change) (string, fileKind) {
	parts := strings.SplitN(strings.TrimPrefix(c.Path, "/"), "/", 4)
	switch {
	case parts[0] == "area" && len(parts) > 1 && areaTargets[parts[1]] != "":
		return path.Join(append([]string{areaTargets[parts[1]]}, parts[2:]...)...), plainKind(c)
	case parts[0] == "layer" && len(parts) == 4 && parts[2] == "data":
		for _, p := range v.places {
			if own := v.record.Own(p); len(own) > 0 && own[0] == path.Join(parts[:3]...) {
				return path.Join(p.Path, parts[3]), v.layerKind(c, p, parts[3])
			}
		}
	}
	return "", unchanged
}

// layerKind is the kind of a change of a file on a layer. A file that is below, and was
// not on the layer before, was copied up or hidden: it is created for the layer, and
// modified for the sandbox. A directory is not told then, since a change in it copies it
// up as well, unless it hides the directory below.
func (v *storeView) layerKind(c watch.Change, p record.Place, name string) fileKind {
	below := v.hasBelow(p, name)
	dir := c.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case c.Is && isWhiteout(c):
		if below {
			return deleted
		}
	case c.Is && dir && (c.Was || below):
		if !c.Was && v.opaque(c.Path) {
			return modified
		}
	case c.Is && (c.Was || below):
		return modified
	case c.Is:
		return created
	case c.Was:
		return deleted
	}
	return unchanged
}

// isWhiteout says that the file hides one of the layers below (overlayfs.rst,
// "whiteouts and opaque directories").
func isWhiteout(c watch.Change) bool {
	return c.Mode&unix.S_IFMT == unix.S_IFCHR && c.Rdev == 0
}

// opaque says that a directory of the store hides that of the layers below.
func (v *storeView) opaque(name string) bool {
	dir, err := record.OpenRooted(v.top, name, record.ToRead)
	if err != nil {
		return false // it went this moment
	}
	defer dir.Close()
	value := make([]byte, 1)
	n, err := unix.Fgetxattr(int(dir.Fd()), "trusted.overlay.opaque", value)
	return err == nil && n == 1 && value[0] == 'y'
}

// hasBelow says whether a place has a file below its upper layer: on the sandbox's own,
// on those that it has begun with, on the host, or in the image.
func (v *storeView) hasBelow(p record.Place, name string) bool {
	for _, dir := range v.record.Own(p)[1:] {
		if there, hidden := lookupFile(v.top, path.Join(dir, name)); there {
			return !hidden
		}
	}
	for _, ref := range v.record.Stacks[p.Path].Below {
		image := v.open(ref.Image, func() (*os.File, error) { return v.roots.OpenBelow(v.record, ref, true) })
		if there, hidden := lookupFile(image, path.Join(ref.Dir, name)); there {
			return !hidden
		}
	}
	if p.Tree == nil {
		return false
	}
	tree := v.open(p.Path, func() (*os.File, error) {
		if p.Tree.Image != "" {
			return v.image(v.record, p.Tree.Image)
		}
		return p.Tree.Open()
	})
	there, _ := lookupFile(tree, name)
	return there
}

// open opens something once.
func (v *storeView) open(name string, how func() (*os.File, error)) *os.File {
	f, ok := v.opened[name]
	if !ok {
		f, _ = how() // nil where it is gone
		v.opened[name] = f
	}
	return f
}

// lookupFile says whether there is a file, and whether it is a whiteout. Below nil there is
// none.
func lookupFile(root *os.File, name string) (there, whiteout bool) {
	if root == nil {
		return false, false
	}
	f, err := record.OpenRooted(root, name, unix.O_PATH)
	if err != nil {
		return false, false
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return false, false
	}
	return true, st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}
