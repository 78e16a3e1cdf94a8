package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// source is something of the host to attach: a directory, a regular file or a socket,
// held open since before it was checked. Its paths are for messages.
type source struct {
	path   string // as given
	origin string // of an entry of an unfolded source, that source's path
	real   string // as resolved when it was opened
	alias  string // of an overlay, its second place; empty if there is none
	fd     int    // O_PATH, for looking into it; -1 once closed
	tree   int    // the detached mount; -1 before clone and once closed
	dir    bool
	socket bool
	mode   uint32 // when it was opened

	writable bool
	shown    ownerView
	// uid and gid on disk are the user's where ids are mapped; an entry of an
	// unfolded source has its parent's.
	uid, gid uint32

	overlay *overlay // nil: the tree itself is shown
	image   bool     // the root of an image
	view    *view    // nil: the inodes are the host's
	at      string   // the place in the view's directory

	peer    *Peer // with whose rights it is looked into
	foreign bool  // shown asNobody, since it is not the peer's
}

// ownerView is the owner that the files of a source have inside.
type ownerView uint8

const (
	asNobody ownerView = iota // not idmapped
	asOnDisk                  // id i on disk is id i inside
	asUser                    // the source's owner is the sandbox's user
)

// openSource opens an absolute path, following symbolic links, and checks the file. Only
// directories, regular files and, for binds, sockets are sources.
func openSource(path string, writable bool, as ownerView, r *hostpaths.Rules) (*source, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%q: must be an absolute path", path)
	}
	path = filepath.Clean(path)
	fd, err := descriptor.Open(unix.AT_FDCWD, path, descriptor.NoMagicLinks, unix.O_PATH)
	if err != nil {
		return nil, openError(path, writable, err)
	}
	return newSource(path, fd, writable, as, r)
}

// newSource makes a source of a descriptor, which it owns, and checks it.
func newSource(path string, fd int, writable bool, as ownerView, r *hostpaths.Rules) (*source, error) {
	path = filepath.Clean(path)
	s := &source{path: path, origin: path, fd: fd, tree: -1, writable: writable, shown: as}
	if err := s.inspect(r); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// forbidden is the error of a source that a rule forbids.
func (s *source) forbidden(rule string) error {
	return &ForbiddenError{Path: s.path, Resolved: s.real, Rule: rule}
}

func openError(path string, writable bool, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist) && writable:
		return fmt.Errorf("%s does not exist, and it is not created: make it first, with the owner its files shall have: %w", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: %w", path, err)
	}
	return fmt.Errorf("open %s: %w", path, err)
}

// inspect describes the descriptor's file, and decides on that.
func (s *source) inspect(r *hostpaths.Rules) error {
	var st unix.Stat_t
	if err := unix.Fstat(s.fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", s.path, err)
	}
	resolved, err := pathOf(s.fd)
	if err != nil {
		return fmt.Errorf("resolve %s: %w", s.path, err)
	}
	if st.Nlink == 0 || !filepath.IsAbs(resolved) {
		return fmt.Errorf("%s was removed while it was opened", s.path)
	}
	s.real, s.mode, s.uid, s.gid = resolved, st.Mode, st.Uid, st.Gid
	if err := r.Check(s.path, s.real, s.writable); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.dir = true
	case unix.S_IFREG:
	case unix.S_IFSOCK:
		if err := s.checkSocket(r); err != nil {
			return err
		}
	default:
		return s.forbidden("is a " + typeName(st.Mode) + "; only directories, files and sockets can be bound")
	}
	return s.refuseKernelView()
}

// refuseKernelView refuses the kernel's own file systems wherever they are
// mounted: a /proc below a chroot is the host's processes all the same.
func (s *source) refuseKernelView() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.fd, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", s.path, err)
	}
	if name, ok := kernelViewMagic[int64(st.Type)]; ok { //nolint:unconvert // int32 on some architectures
		return s.forbidden("is on a " + name + " file system, which shows the host's kernel")
	}
	return nil
}

var kernelViewMagic = map[int64]string{
	unix.PROC_SUPER_MAGIC:    "proc",
	unix.SYSFS_MAGIC:         "sysfs",
	unix.CGROUP_SUPER_MAGIC:  "cgroup",
	unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEVPTS_SUPER_MAGIC:  "devpts",
	unix.DEBUGFS_MAGIC:       "debugfs",
	unix.TRACEFS_MAGIC:       "tracefs",
	unix.SECURITYFS_MAGIC:    "securityfs",
	unix.BPF_FS_MAGIC:        "bpf",
	unix.PSTOREFS_MAGIC:      "pstore",
	unix.EFIVARFS_MAGIC:      "efivarfs",
	unix.BINFMTFS_MAGIC:      "binfmt_misc",
	unix.NSFS_MAGIC:          "nsfs",
	unix.SELINUX_MAGIC:       "selinuxfs",
}

// kernelViewType names the same file systems as mountinfo does, with those that
// have no magic number of their own.
func kernelViewType(name string) bool {
	return slices.Contains([]string{"devtmpfs", "configfs", "fusectl"}, name) ||
		slices.Contains(slices.Collect(maps.Values(kernelViewMagic)), name)
}

func typeName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "device"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFDIR:
		return "directory"
	}
	return "file"
}

// pathOf is where a held descriptor's object is now.
func pathOf(fd int) (string, error) { return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)) }

// A foundFile is a file at a path within a source.
type foundFile struct {
	mode uint32
	link string // the target, of a symbolic link
}

// lookup finds rel below the source. No symbolic link is followed, and nothing
// above the source is reached.
func (s *source) lookup(rel string) (foundFile, error) {
	fd, err := s.openBeneath(rel)
	if err != nil {
		return foundFile{}, err
	}
	defer descriptor.CloseFD(fd)
	return examine(fd)
}

// openBeneath is the function of that name, with the rights of the source's peer.
func (s *source) openBeneath(rel string) (fd int, err error) {
	err = s.peer.withRights(func() error {
		fd, err = openBeneath(s.fd, rel)
		return err
	})
	return fd, err
}

// openBeneath opens without following a symbolic link anywhere; a link itself is
// opened as such.
func openBeneath(dir int, rel string) (int, error) {
	return descriptor.Open(dir, rel, descriptor.Beneath, unix.O_PATH|unix.O_NOFOLLOW)
}

// withOpen calls f with a file that openBeneath opens.
func withOpen(dir int, rel string, f func(fd int) error) error {
	fd, err := openBeneath(dir, rel)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer descriptor.CloseFD(fd)
	return f(fd)
}

func examine(fd int) (foundFile, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return foundFile{}, err
	}
	f := foundFile{mode: st.Mode}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return f, nil
	}
	var err error
	f.link, err = descriptor.ReadLink(fd, "")
	return f, err
}

// entry opens a directory's entry as a source of its own, or says that it is a
// symbolic link. Anything else gives neither.
func (s *source) entry(name string) (*source, string, error) {
	fd, err := s.openBeneath(name)
	if err != nil {
		return nil, "", fmt.Errorf("open %s: %w", filepath.Join(s.path, name), err)
	}
	f, err := examine(fd)
	kind := f.mode & unix.S_IFMT
	if err != nil || kind != unix.S_IFDIR && kind != unix.S_IFREG {
		descriptor.CloseFD(fd)
		return nil, f.link, err
	}
	return &source{
		path: filepath.Join(s.path, name), origin: s.origin, real: filepath.Join(s.real, name), fd: fd, tree: -1,
		dir: kind == unix.S_IFDIR, mode: f.mode, writable: s.writable, shown: s.shown, uid: s.uid, gid: s.gid,
		peer: s.peer, foreign: s.foreign, overlay: s.overlay.ofOtherSource(), view: s.view, at: filepath.Join(s.at, name),
	}, "", nil
}

// names lists a directory, at most limit+1 of its entries.
func (s *source) names(limit int) ([]string, error) {
	fd := -1
	err := s.peer.withRights(func() (err error) {
		fd, err = unix.Openat(s.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", s.path, err)
	}
	dir := os.NewFile(uintptr(fd), s.path)
	defer dir.Close()
	names, err := dir.Readdirnames(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list %s: %w", s.path, err)
	}
	return names, nil
}

// text reads a regular file, at most limit+1 bytes of the file.
func (s *source) text(limit int64) (string, error) {
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(s.fd))
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	text.Grow(int(min(info.Size(), limit)) + bytes.MinRead)
	_, err = text.ReadFrom(io.LimitReader(f, limit+1))
	return text.String(), err
}

func (s *source) close() {
	s.closePath()
	descriptor.CloseFD(s.tree)
	s.tree = -1
}

func (s *source) closePath() {
	descriptor.CloseFD(s.fd)
	s.fd = -1
}

func split(p string) []string {
	return strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
}

// heldSource makes a source of a descriptor that somebody else opened for path,
// in place of opening that. The file stays its owner's.
func heldSource(path string, file *os.File, writable bool, as ownerView, r *hostpaths.Rules, peer *Peer) (*source, error) {
	if peer != nil {
		if err := peer.mayShow(path, file); err != nil {
			return nil, err
		}
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of %s: %w", path, err)
	}
	s, err := newSource(path, fd, writable, as, r)
	if err != nil {
		return nil, err
	}
	s.peer = peer
	if err = s.isHere(); err == nil {
		err = peer.limit(s)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func openedForReading(path string, file *os.File, peer *Peer) error {
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("look at the descriptor of %s: %w", path, err)
	}
	if flags&unix.O_PATH != 0 || flags&unix.O_ACCMODE == unix.O_WRONLY {
		return &ForbiddenError{Path: path, Rule: fmt.Sprintf("was not opened for reading, so nothing says that user %d may read it", peer.UID)}
	}
	return nil
}

// isHere refuses a source in another mount namespace than the calling thread's:
// open_tree(2) would refuse it with an error that says nothing. isHere also refuses a
// source without a path, mounted over or detached, whose path would mislead the rules.
func (s *source) isHere() error {
	elsewhere := fmt.Sprintf("%s is another file than the launcher finds at %s: open it in the launcher's mount namespace, where nothing is mounted over it", s.path, s.real)
	fd, err := descriptor.Open(unix.AT_FDCWD, s.real, descriptor.NoLinks, unix.O_PATH)
	if err != nil {
		return fmt.Errorf("%s: %w", elsewhere, err)
	}
	defer descriptor.CloseFD(fd)
	here, err := identify(fd)
	if err != nil {
		return fmt.Errorf("statx %s: %w", s.real, err)
	}
	opened, err := identify(s.fd)
	if err != nil {
		return fmt.Errorf("statx %s: %w", s.path, err)
	}
	if here != opened {
		return errors.New(elsewhere)
	}
	return nil
}

// identity tells an object in a mount from all others. Mount ids are unique in
// the kernel (statx(2), Linux 5.8).
type identity struct {
	mount, inode uint64
	major, minor uint32
}

func identify(fd int) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
		return identity{}, err
	}
	return identity{st.Mnt_id, st.Ino, st.Dev_major, st.Dev_minor}, nil
}
