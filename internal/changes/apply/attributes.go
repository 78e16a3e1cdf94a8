package apply

import (
	"bytes"
	"errors"
	"maps"

	"golang.org/x/sys/unix"
)

// setAttributes gives a directory the given attributes. It does not touch attributes that
// are right already, so that they need no rights.
func (r *run) setAttributes(o *op, a *attributes) error {
	f, err := r.tree.open(o.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if missing(err) || noDirectory(err) {
		return changedNow(o.Path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	is, err := statFD(int(f.Fd()))
	if err != nil {
		return errorAt(o.Path, err)
	}
	if o.Ino != 0 && is.Ino != o.Ino {
		return changedNow(o.Path)
	}
	now := attributesOf(is)
	if now.Xattrs, err = xattrsOf(int(f.Fd())); err != nil {
		return errorAt(o.Path, err)
	}
	if !o.Any && !now.between(o.Was, o.New) {
		return changedNow(o.Path)
	}
	return errorAt(o.Path, a.setOnDirectory(int(f.Fd()), is))
}

// between tells whether each attribute but the time is that of x or of y. A killed
// process may have set some attributes only.
func (a *attributes) between(x, y *attributes) bool {
	if a.Mode != x.Mode && a.Mode != y.Mode || a.UID != x.UID && a.UID != y.UID || a.GID != x.GID && a.GID != y.GID {
		return false
	}
	for _, names := range []map[string][]byte{a.Xattrs, x.Xattrs, y.Xattrs} {
		for name := range names {
			if !sameXattr(name, a, x) && !sameXattr(name, a, y) {
				return false
			}
		}
	}
	return true
}

func sameXattr(name string, a, b *attributes) bool {
	inA, okA := a.Xattrs[name]
	inB, okB := b.Xattrs[name]
	return okA == okB && bytes.Equal(inA, inB)
}

// setOnDirectory sets the attributes of an open directory, which is as it is.
func (a *attributes) setOnDirectory(fd int, is entry) error {
	if is.UID != a.UID || is.GID != a.GID {
		if err := unix.Fchown(fd, int(a.UID), int(a.GID)); err != nil {
			return err
		}
	}
	if is.Mode&^unix.S_IFMT != a.Mode {
		if err := unix.Fchmod(fd, a.Mode); err != nil {
			return err
		}
	}
	if err := replaceXattrs(fd, a.Xattrs); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), a.times(), 0)
}

// replaceXattrs makes an open file's extended attributes those that are given.
func replaceXattrs(fd int, xattrs map[string][]byte) error {
	is, err := xattrsOf(fd)
	if err != nil {
		return err
	}
	more := maps.Clone(xattrs)
	for name, value := range is {
		if want, ok := xattrs[name]; ok {
			if string(want) == string(value) {
				delete(more, name)
			}
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	return setXattrs(fd, more, func(string) bool { return true })
}
