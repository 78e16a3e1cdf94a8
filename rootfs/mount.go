package rootfs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/devices"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// The skeleton holds no data but generated files, and copies of small files of the host's /etc.
const (
	skeletonBytes  = "8m"    // a bound
	skeletonInodes = "16384" // above maxEntries and the additions of targets
)

// Mounted is where a root was put.
type Mounted struct {
	// Path is the directory that holds the root.
	Path string

	// Binds are mounts for the caller to make, after those at Config.MountPoints, since
	// their targets lie below one of these.
	Binds []specs.Mount

	// Devices is a directory for the caller to bind to /dev, with device nodes of
	// the sandbox's own. Empty: the kernel refuses to make nodes, [Root.Notes] says
	// so, and the caller binds the host's.
	Devices string

	// Store is a detached mount of Config.Store, of which the sandbox sees parts only: its
	// holder reaches all writes. The caller must close it. Nil without a store.
	Store *os.File
}

// Mount puts the root below dir, an existing empty directory, in the calling
// thread's mount namespace. The caller has locked the thread and made the
// namespace private; all of it ends with that namespace. A sandbox's root user,
// the host's id IDBase, must have search permission on each directory above dir.
// The skeleton is left writable for the caller to make read-only. On an error
// nothing is left mounted. A Root is mounted once.
func (r *Root) Mount(dir string) (m Mounted, err error) {
	if r.plan.root == nil {
		return m, fmt.Errorf("mount root on %s: it was mounted or closed before", dir)
	}
	root := r.plan.root
	defer func() { err = errors.Join(err, r.Close()) }()
	base, err := r.mountSkeleton(dir)
	if err != nil {
		return m, err
	}
	defer descriptor.CloseFD(base)
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}()
	b := builder{ids: r.ids.Map(), dir: dir, base: base, store: -1, noteShared: r.noteShared}
	defer b.close()
	if r.store != nil {
		if m.Store, err = b.attachStore(r.store); err != nil {
			return m, err
		}
		defer func() {
			if err != nil {
				m.Store.Close()
			}
		}()
	}
	if err := b.root(base, root); err != nil {
		return m, fmt.Errorf("mount root on %s: %w", dir, err)
	}
	r.plan.etc = b.etc
	if err := b.attachRepetitions(); err != nil {
		return m, fmt.Errorf("mount root on %s: %w", dir, err)
	}
	if err := b.cgroups(root, r.cgroups); err != nil {
		return m, fmt.Errorf("mount cgroups on %s: /sys/fs/cgroup: %w", dir, err)
	}
	m.Path = filepath.Join(dir, "root")
	m.Devices, err = b.mountDevices("dev")
	if errors.Is(err, devices.ErrShared) {
		r.addNote("%v", err)
	} else if err != nil {
		return m, fmt.Errorf("mount devices on %s: %w", dir, err)
	}
	aside := newDir()
	root.eachLateBind("/", false, func(target string, bind *node) {
		name := strconv.Itoa(len(m.Binds))
		aside.addChild(name, bind)
		m.Binds = append(m.Binds, specs.Mount{
			Destination: target, Source: filepath.Join(dir, "aside", name), Type: "bind", Options: []string{"rbind"},
		})
	})
	if err := b.directory(base, "aside", aside); err != nil {
		return m, fmt.Errorf("mount binds on %s: %w", dir, err)
	}
	if r.plan.sources.stamps == nil {
		return m, nil
	}
	kept, err := unix.FcntlInt(uintptr(base), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		r.shown = newShown(r.plan, os.NewFile(uintptr(kept), "skeleton"), r.ids, r.plan.sources.peer)
	}
	return m, err
}

// eachLateBind calls f with the binds below directories that the caller mounts over.
func (n *node) eachLateBind(at string, covered bool, f func(target string, bind *node)) {
	covered = covered || n.covered
	if covered && n.kind == bindNode {
		f(at, n)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		n.children[name].eachLateBind(path.Join(at, name), covered, f)
	}
}

// mountSkeleton mounts the tmpfs and returns a descriptor of its top, which only
// the sandbox's root user can enter. move_mount(2), Linux 5.2.
func (r *Root) mountSkeleton(dir string) (int, error) {
	uid, gid := r.ids.Map().Host(userns.Owner{})
	fs, err := fsmount.Open("tmpfs", "sandbox", [2]string{"mode", "0700"}, [2]string{"size", skeletonBytes}, [2]string{"nr_inodes", skeletonInodes},
		[2]string{"uid", strconv.Itoa(uid)}, [2]string{"gid", strconv.Itoa(gid)})
	if err != nil {
		return -1, err
	}
	defer fs.Close()
	mnt, err := fs.Mount()
	if err != nil {
		return -1, err
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		descriptor.CloseFD(mnt)
		return -1, fmt.Errorf("move_mount tmpfs to %s: %w", dir, err)
	}
	return mnt, nil
}

// mountDevices attaches a /dev of the sandbox's own at a name below the skeleton, and returns the path.
func (b *builder) mountDevices(name string) (string, error) {
	dev, err := devices.Mount(b.ids.Host(userns.Owner{}))
	if err != nil {
		return "", err
	}
	defer dev.Close()
	if err := unix.Mkdirat(b.base, name, 0o700); err != nil {
		return "", fmt.Errorf("mkdir: %w", err)
	}
	err = withOpen(b.base, name, func(at int) error { return os.NewSyscallError("move_mount", move(int(dev.Fd()), at)) })
	return filepath.Join(b.dir, name), err
}

// builder makes a plan real below a mounted skeleton. Every name it makes or
// mounts on is a single one below a held descriptor.
type builder struct {
	ids         userns.Map
	dir         string // where the skeleton is mounted
	base        int    // the skeleton's top
	store       int    // the store's, -1 where there is none
	masks       int    // how many there are
	pointsOnly  bool   // make mount points, attach nothing, and leave out copies
	etc         string // the place of the sandbox's own files of /etc; empty: root/etc
	views       int    // how many overlays of views
	noteShared  func(string, error)
	repetitions []repetition
}

func (b *builder) close() {
	for _, r := range b.repetitions {
		descriptor.CloseFD(r.at)
	}
	descriptor.CloseFD(b.store)
}

// root makes the sandbox's root.
func (b *builder) root(base int, n *node) error {
	if n.kind == bindNode {
		return b.bind(base, "root", n)
	}
	return b.directory(base, "root", n)
}

// fill makes the children of a directory of the skeleton.
func (b *builder) fill(parent int, n *node) error {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		if b.pointsOnly && n.children[name].shared() {
			continue
		}
		var err error
		switch c := n.children[name]; c.kind {
		case dirNode:
			err = b.directory(parent, name, c)
		case linkNode:
			err = b.link(parent, name, c)
		case fileNode:
			err = b.file(parent, name, c)
		case bindNode, areaNode, sameNode:
			err = b.bind(parent, name, c)
		default:
			err = errors.New("a place in a bind, outside of one")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *builder) directory(parent int, name string, n *node) error {
	if err := unix.Mkdirat(parent, name, 0o700); err != nil {
		return fmt.Errorf("mkdir: %w", err)
	}
	if err := b.chown(parent, name, n, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := unix.Fchmodat(parent, name, n.mode, 0); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	if n.covered || len(n.children) == 0 {
		return nil
	}
	return withOpen(parent, name, func(fd int) error {
		if n.under != nil {
			return b.merged(fd, n)
		}
		return b.fill(fd, n)
	})
}

func (b *builder) link(parent int, name string, n *node) error {
	if err := unix.Symlinkat(n.text, parent, name); err != nil {
		return fmt.Errorf("symlink: %w", err)
	}
	return b.chown(parent, name, n, unix.AT_SYMLINK_NOFOLLOW)
}

func (b *builder) file(parent int, name string, n *node) error {
	fd, err := unix.Openat(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer descriptor.CloseFD(fd)
	wrote, err := unix.Write(fd, []byte(n.text))
	if err == nil && wrote < len(n.text) {
		err = unix.ENOSPC
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := unix.Fchmod(fd, 0o644); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	return b.chown(fd, "", n, unix.AT_EMPTY_PATH)
}

func (b *builder) chown(fd int, name string, n *node, flags int) error {
	uid, gid := b.ids.Host(userns.Owner{UID: n.uid, GID: n.gid})
	return os.NewSyscallError("chown", unix.Fchownat(fd, name, uid, gid, flags))
}

// bind makes a mount point in the skeleton and attaches the source of a node there.
func (b *builder) bind(parent int, name string, n *node) error {
	if err := makePoint(parent, name, n.isDir()); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if b.pointsOnly {
		return nil
	}
	return withOpen(parent, name, func(fd int) error { return b.attach(fd, n) })
}

// makePoint makes an empty directory or file to mount on.
func makePoint(parent int, name string, isDir bool) error {
	if isDir {
		return unix.Mkdirat(parent, name, 0o755)
	}
	return unix.Mknodat(parent, name, unix.S_IFREG|0o644, 0)
}

// isDir says whether a directory is attached, or is there, at the node.
func (n *node) isDir() bool {
	switch n.kind {
	case bindNode:
		return n.src.dir
	case maskNode:
		return !n.file
	}
	return true
}

// attach attaches the source of a node over the file at a descriptor.
func (b *builder) attach(at int, n *node) error {
	switch n.kind {
	case areaNode:
		return b.area(at, n)
	case maskNode:
		return b.mask(at, n)
	case sameNode:
		return b.noteRepetition(at, n)
	}
	switch {
	case n.src.overlay != nil:
		if err := b.overlay(n); err != nil {
			return fmt.Errorf("overlay %s: %w", n.src.path, err)
		}
	case n.src.view != nil:
		if err := b.view(n.src); err != nil {
			return fmt.Errorf("show %s through an overlay: %w", n.src.path, err)
		}
	}
	if err := move(n.src.tree, at); err != nil {
		return fmt.Errorf("move_mount %s: %w", n.src.path, err)
	}
	return b.within(n.src.tree, n)
}

// move attaches a detached mount over the file at a descriptor. move_mount(2), Linux 5.2.
func move(tree, at int) error {
	return unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// within attaches sources at places of an attached bind. The file there may be another one
// than the planned one, but it is below the bind in any case, and no symbolic link.
func (b *builder) within(parent int, n *node) error {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		c := n.children[name]
		if err := withOpen(parent, name, func(fd int) error { return b.attachExpected(fd, c) }); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// attachExpected attaches the source of a node over the file at a descriptor, if the file has the planned type.
func (b *builder) attachExpected(fd int, n *node) error {
	there, err := examine(fd)
	if err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	isDir := there.mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case there.link != "" || isDir != n.isDir():
		return fmt.Errorf("it became a %s meanwhile", typeName(there.mode))
	case n.covered:
		return nil
	case n.kind == passNode:
		return b.within(fd, n)
	}
	return b.attach(fd, n)
}
