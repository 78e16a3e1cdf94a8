package layer

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A directory is one of the merged tree: the visible layers' directories, and the base's,
// of the same path.
type directory struct {
	path   string
	depth  int
	levels []level
	// base is the base's directory, or one of none and shut.
	base int
	// hidden: nothing in the base's directory shows.
	hidden bool
	// listed: all in here is listed, because Options.Paths say so or are none.
	listed bool

	entries []entry // that were not looked at yet
	// names are the base's from there on, if they have been read instead of
	// being looked up one by one.
	names  []entry
	closed bool
}

// In place of a descriptor.
const (
	none = -1 // there is nothing to open, or no longer
	shut = -2 // closed for a while
)

// A level is one layer's part of a directory.
type level struct {
	layer uint16
	fd    int
	marks
	// hides: no layer below has a directory of the same path that shows in this one.
	hides bool
	// whiteout is the inode of one that was seen: overlayfs links one and the
	// same to all names where it can.
	whiteout uint64
	// noUser: the layer's file system has no user.* attributes, as a tmpfs before Linux
	// 6.6; files that were copied there have lost them.
	noUser bool
}

// descriptors counts those that are open.
func (d *directory) descriptors() int {
	n := 0
	for _, l := range d.levels {
		if l.fd >= 0 {
			n++
		}
	}
	if d.base >= 0 {
		n++
	}
	return n
}

func (d *directory) close() {
	for i := range d.levels {
		d.levels[i].fd = closeFD(d.levels[i].fd)
	}
	d.base = closeFD(d.base)
	d.closed = true
}

func closeFD(fd int) int {
	if fd < 0 {
		return fd
	}
	unix.Close(fd)
	return shut
}

func (d *directory) level(layer uint16) *level {
	for i := range d.levels {
		if d.levels[i].layer == layer {
			return &d.levels[i]
		}
	}
	return nil
}

// next takes the entries of the next name off the directory, the uppermost
// layer's first.
func (d *directory) next() []entry {
	n := 1
	for n < len(d.entries) && d.entries[n].name == d.entries[0].name {
		n++
	}
	group := d.entries[:n]
	d.entries = d.entries[n:]
	return group
}

// root opens the tree itself.
func (s *Stack) root(x *xattrReader) (*directory, error) {
	if err := s.mayRead(); err != nil {
		return nil, err
	}
	d := &directory{base: none}
	for i, l := range s.Layers {
		fd, err := openDirectory(int(l.Dir.Fd()), "")
		if err != nil {
			d.close()
			return nil, err
		}
		d.levels = append(d.levels, level{layer: uint16(i), fd: fd})
		if d.levels[i].marks, err = s.marks(&d.levels[i], "", x); err != nil {
			d.close()
			return nil, err
		}
		if _, err := x.names(fd, ""); err != nil { // without /proc all would seem to be gone
			d.close()
			return nil, fmt.Errorf("read extended attributes by /proc/self/fd: %w", err)
		}
		_, err = unix.Getxattr(inProc(fd, ""), "user.any", nil)
		d.levels[i].noUser = err == unix.ENOTSUP
	}
	if s.Base == nil {
		return d, nil
	}
	fd, err := openPath(int(s.Base.Fd()), "", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		d.close()
		return nil, err
	}
	d.base = fd
	return d, nil
}

// enter opens the visible layers' parts of a directory: group has that name's entries, the
// first of which is a directory.
func (s *Stack) enter(parent *directory, group []entry, x *xattrReader) (*directory, error) {
	d := &directory{path: Join(parent.path, group[0].name), depth: parent.depth + 1, base: none, hidden: parent.hidden}
	for _, e := range group {
		l := parent.level(e.layer)
		if l == nil {
			break // the base's
		}
		typ, err := l.entryType(e, nil, 0, x)
		if err != nil {
			d.close()
			return nil, err
		}
		if typ == typeGone {
			continue
		}
		if typ != unix.DT_DIR {
			d.hidden = true
			break
		}
		opaque, err := s.add(d, l, e.name, x)
		if err != nil {
			d.close()
			return nil, err
		}
		if opaque {
			d.hidden = true
			break
		}
	}
	return d, nil
}

// add opens a layer's part of a directory and tells whether it is opaque.
func (s *Stack) add(d *directory, in *level, name string, x *xattrReader) (bool, error) {
	fd, err := openDirectory(in.fd, name)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	d.levels = append(d.levels, level{layer: in.layer, fd: fd, noUser: in.noUser})
	l := &d.levels[len(d.levels)-1]
	if l.marks, err = s.marks(l, d.path, x); err != nil {
		return false, err
	}
	err = s.settle(l, in, name, d.path)
	l.hides = in.hides || l.Opaque
	return l.Opaque, err
}

// entryType tells the type of a layer's entry, DT_*, typeWhiteout or typeGone. With st
// it is looked up by all means, else only where the entry alone does not tell.
func (l *level) entryType(e entry, st *unix.Statx_t, mask int, x *xattrReader) (uint8, error) {
	typ := e.typ
	switch {
	case l.fd < 0:
		return typeGone, nil
	case typ == unix.DT_CHR && e.ino == l.whiteout && e.ino != 0:
		return typeWhiteout, nil
	}
	if st == nil {
		if typ != unix.DT_UNKNOWN && typ != unix.DT_CHR && (typ != unix.DT_REG || !l.xwhiteouts) {
			return typ, nil
		}
		st, mask = new(unix.Statx_t), unix.STATX_TYPE|unix.STATX_SIZE|unix.STATX_INO
	}
	err := statAt(l.fd, e.name, mask, st)
	if isGone(err) {
		return typeGone, nil
	}
	if err != nil {
		return typeGone, err
	}
	if isWhiteout(st) {
		l.whiteout = st.Ino
		return typeWhiteout, nil
	}
	if l.xwhiteouts && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0 {
		value, err := x.value(l.fd, e.name, whiteoutXattr)
		if value != nil || err != nil {
			return typeWhiteout, err
		}
	}
	return direntTypeOf(st.Mode), nil
}

// baseType looks up a name in the base: its type, "" for none. Names are asked for in order.
func (d *directory) baseType(name string, mask int, st *unix.Statx_t) (spec.FileType, error) {
	if d.base < 0 {
		return "", nil
	}
	if d.names != nil {
		at, found := slices.BinarySearchFunc(d.names, name, func(e entry, name string) int { return strings.Compare(e.name, name) })
		if !found {
			return "", nil
		}
		d.names = d.names[at:]
		if typ := d.names[0].typ; typ != unix.DT_UNKNOWN && typ != unix.DT_CHR {
			return fileType(typ), nil
		}
	}
	err := statAt(d.base, name, mask, st)
	if isGone(err) {
		return "", nil
	}
	if err != nil || isWhiteout(st) { // as a lower layer it hides nothing, and shows nothing
		return "", err
	}
	return FileTypeOf(uint32(st.Mode)), nil
}

// enterBase opens the base's directory of a name; none where there is none or
// where something else is mounted there, which no overlay shows.
func (d *directory) enterBase(name string) (int, error) {
	fd, err := openPath(d.base, name, unix.O_PATH|unix.O_DIRECTORY)
	if isGone(err) || err == unix.EXDEV {
		return none, nil
	}
	return fd, err
}

// has tells whether a layer has a name.
func (d *directory) has(name string) bool {
	return slices.ContainsFunc(d.levels, func(l level) bool {
		var st unix.Stat_t
		return unix.Fstatat(l.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	})
}
