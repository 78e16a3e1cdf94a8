package layer

import (
	"iter"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Stack is the layers of one overlay and the host's tree below them. The caller closes
// the descriptors. Several goroutines can use the methods at once.
type Stack struct {
	// Layers, the uppermost first.
	Layers []Layer
	// Base is the host's tree, opened by the caller; nil stands for an empty one.
	Base *os.File
	// IDs translates ids as the layers show them to those inside; an id that
	// it does not know (false) is told as 65534. Nil: they are the same.
	IDs func(uid, gid uint32) (uint32, uint32, bool)
	// BaseIDs does the same for ids as Base shows them.
	BaseIDs func(uid, gid uint32) (uint32, uint32, bool)
	// Stamps are of the paths that applies of these layers have written to the base.
	Stamps map[string]Stamp

	// renamed, if it is set, is called with each renamed directory.
	renamed func(r RenamedDir)
	// back, if it is set, is called with each directory that was renamed back to its first place. ctime is in nanoseconds.
	back func(path string, ctime int64)
}

// Layer is the writes to one overlay.
type Layer struct {
	Dir *os.File
	// Marks are the marks of the layer's directories, as the function Marks lists
	// them. Only root outside of user namespaces may read trusted extended attributes;
	// other callers need the list. Nil: Changes reads the attributes.
	Marks map[string]Mark
}

// Options choose the changes that Changes lists.
type Options struct {
	// Names leaves out all but path, kind and types, and does not find
	// directories of which nothing but mode, owner or attributes changed.
	Names bool
	// Paths are those that are listed, with all below them. None: all.
	Paths []string
	// Deleted lists each path that is gone with a directory that was deleted
	// or replaced, or that an opaque one hides; else the directory stands for them.
	Deleted bool
	// Merged, if set, is called with each directory that the layers and the base both
	// have, before the changes in the directory are listed. It is not called with a
	// directory that hides all of the base's.
	Merged func(path string, o Origin)
}

// Changes lists the changes of the layers against the base: each directory before its
// content, the entries of a directory in the order of their bytes. The tree's root is
// never listed.
//
// An error comes with the path that it is about; the list goes on after it if the caller
// does.
func (s *Stack) Changes(o Options) iter.Seq2[spec.Change, error] {
	return func(yield func(spec.Change, error) bool) {
		w := walker{Stack: s, o: o, yield: yield}
		if err := w.choose(o.Paths); err != nil {
			yield(spec.Change{}, err)
			return
		}
		w.walk()
		runtime.KeepAlive(s)
	}
}

// choose notes the paths to list, and the directories on the way there.
func (w *walker) choose(paths []string) error {
	for _, path := range paths {
		if err := checkPath(path); err != nil {
			return err
		}
		if w.chosen == nil {
			w.chosen, w.ways = map[string]bool{}, map[string]bool{}
		}
		w.chosen[path] = true
		for at, c := range []byte(path) {
			if c == '/' {
				w.ways[path[:at]] = true
			}
		}
	}
	return nil
}

// Open opens the content of a regular file that is in the layers, for reading.
func (s *Stack) Open(path string) (*os.File, error) {
	defer runtime.KeepAlive(s)
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := s.find(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f, err := openRegular(fd, path)
	if err != nil {
		return nil, err
	}
	if _, err := unix.Fgetxattr(int(f.Fd()), metacopyXattr, nil); err == nil {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: foreignError{metacopyXattr}}
	}
	return f, nil
}

// OpenListed is Open for a regular file that Changes has listed, in fewer system
// calls. It returns a descriptor of the caller's. The sandbox may have put something
// else in the file's place since, so the caller must look at the type before it reads.
func (s *Stack) OpenListed(path string) (int, error) {
	defer runtime.KeepAlive(s)
	if len(s.Layers) == 1 && checkPath(path) == nil {
		// Such flags that the open has no effect on a pipe, and the layer has no devices.
		fd, err := openPath(int(s.Layers[0].Dir.Fd()), path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
	f, err := s.Open(path)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// Type is the type of a path in the layers themselves. The error is fs.ErrNotExist if they
// do not have the path, or have deleted it.
func (s *Stack) Type(path string) (spec.FileType, error) {
	defer runtime.KeepAlive(s)
	if err := checkPath(path); err != nil {
		return "", err
	}
	fd, err := s.find(path)
	if err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 { // a whiteout
		return "", &os.PathError{Op: "stat", Path: path, Err: unix.ENOENT}
	}
	return FileTypeOf(st.Mode), nil
}

// find opens, for identification only, the path that the layers show.
func (s *Stack) find(path string) (int, error) {
	if len(s.Layers) == 0 {
		return -1, unix.ENOENT
	}
	// Any file of the uppermost layer shows.
	fd, err := openPath(int(s.Layers[0].Dir.Fd()), path, unix.O_PATH)
	if !isGone(err) {
		return fd, err
	}
	if len(s.Layers) == 1 {
		return -1, unix.ENOENT
	}
	var x xattrReader
	d, err := s.root(&x)
	if err != nil {
		return -1, err
	}
	parent, name := Split(path)
	for part := range strings.SplitSeq(parent, "/") {
		if part == "" {
			break
		}
		if len(d.levels) == 0 { // no layer has the directory, or has it any more
			d.close()
			return -1, unix.ENOENT
		}
		child, err := s.enter(d, d.candidates(part), &x)
		d.close()
		if err != nil {
			return -1, err
		}
		d = child
	}
	defer d.close()
	for _, e := range d.candidates(name) {
		l := d.level(e.layer)
		switch typ, err := l.entryType(e, nil, 0, &x); {
		case err != nil:
			return -1, err
		case typ == typeWhiteout:
			return -1, unix.ENOENT
		case typ != typeGone:
			return openPath(l.fd, name, unix.O_PATH)
		}
	}
	return -1, unix.ENOENT
}

// candidates are entries of a name in all levels, as if they had been read.
func (d *directory) candidates(name string) []entry {
	var all []entry
	for _, l := range d.levels {
		all = append(all, entry{name: name, layer: l.layer, typ: unix.DT_UNKNOWN})
	}
	return all
}

// Below describes a path of the base, in the fields of a change without a kind. The error
// is fs.ErrNotExist if the base does not have it, also if a parent is not a directory.
func (s *Stack) Below(path string) (spec.Change, error) {
	defer runtime.KeepAlive(s)
	fd, err := s.openBase(path)
	if err != nil {
		return spec.Change{}, err
	}
	defer unix.Close(fd)
	c, err := s.baseChange(fd, path)
	if err != nil {
		return spec.Change{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return c, nil
}

func (s *Stack) baseChange(fd int, path string) (spec.Change, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, wholeStat, &st); err != nil {
		return spec.Change{}, err
	}
	c := spec.Change{Path: path, Type: FileTypeOf(uint32(st.Mode))}
	fill(&c, &st, s.BaseIDs)
	var err error
	if c.Type == spec.TypeSymlink {
		c.Link, err = readLink(fd, "")
		return c, err
	}
	var x xattrReader
	c.Xattrs, err = x.ofBase(s, fd, "")
	return c, err
}

// OpenBelow opens the content of a regular file of the base, for reading.
func (s *Stack) OpenBelow(path string) (*os.File, error) {
	defer runtime.KeepAlive(s)
	fd, err := s.openBase(path)
	if err != nil {
		return nil, err
	}
	return openRegular(fd, path)
}

// openBase opens, for identification only, a path of the base.
func (s *Stack) openBase(path string) (int, error) {
	if err := checkPath(path); err != nil {
		return none, err
	}
	if s.Base == nil {
		return none, &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	fd, err := openPath(int(s.Base.Fd()), path, unix.O_PATH)
	if isGone(err) {
		err = unix.ENOENT
	}
	if err != nil {
		return none, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
