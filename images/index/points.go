package index

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ownPlaces are directories of the sandbox. A file or link of the image at such a place is
// replaced by a directory, since mounts must not follow a link of the image.
var ownPlaces = [...]string{"dev", "proc", "run", "sys", "tmp", "workspace"}

// mountPoint is a place where the runtime mounts, if the image lets it.
type mountPoint struct {
	dir, name string
	mode      uint16
}

var mountPoints = [...]mountPoint{
	{"etc", "hostname", unix.S_IFREG | 0o644},
	{"etc", "hosts", unix.S_IFREG | 0o644},
	{"etc", "resolv.conf", unix.S_IFREG | 0o644},
	{"home", "sandbox", unix.S_IFDIR | 0o755},
	{"var", "tmp", unix.S_IFDIR | 0o1777},
}

// addMountPoints adds the places that all layers together lack.
func (t *tree) addMountPoints() error {
	for _, name := range ownPlaces {
		mode := uint16(0o755)
		if name == "tmp" {
			mode = 0o1777
		}
		if e, ok := t.root.dir.entries[name]; ok && e.dir != nil {
			continue
		}
		if err := t.put(t.root, name, newDirectory(mode)); err != nil {
			return err
		}
	}
	for _, p := range mountPoints {
		if err := t.addMountPoint(p); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) addMountPoint(p mountPoint) error {
	dir, err := t.walk(p.dir, true)
	switch {
	case err == nil:
		return t.addMissing(dir, p)
	case errors.As(err, new(*LimitError)):
		return err
	default:
		return nil // an image without such a place is still of use
	}
}

func (t *tree) addMissing(dir *inode, p mountPoint) error {
	if _, ok := dir.dir.entries[p.name]; ok {
		return nil
	}
	i := &inode{mode: p.mode}
	if i.kind() == unix.S_IFDIR {
		i = newDirectory(p.mode &^ unix.S_IFMT)
	}
	return t.put(dir, p.name, i)
}
