package rootfs

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The skeleton holds no data but generated files of some hundred bytes.
const (
	skeletonBytes  = "1m"
	skeletonInodes = "16384" // above maxEntries and what targets add
)

// Mounted is where a root was put.
type Mounted struct {
	// Path is the directory that holds the root.
	Path string

	// Binds are what the caller has to mount itself, after what it mounts at
	// Config.MountPoints, since their targets lie below one of these.
	Binds []specs.Mount
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
	defer closeFD(base)
	defer func() {
		if err != nil {
			err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}()
	b := builder{uids: r.ids.uids(), gids: r.ids.gids()}
	if err := b.directory(base, "root", root); err != nil {
		return m, fmt.Errorf("mount root on %s: %w", dir, err)
	}
	m.Path = filepath.Join(dir, "root")
	aside, late := newDir(), root.late("/", false)
	for i, l := range late {
		name := strconv.Itoa(i)
		aside.put(name, l.node)
		m.Binds = append(m.Binds, specs.Mount{
			Destination: l.target, Source: filepath.Join(dir, "aside", name), Type: "bind", Options: []string{"rbind"},
		})
	}
	if err := b.directory(base, "aside", aside); err != nil {
		return m, fmt.Errorf("mount binds on %s: %w", dir, err)
	}
	return m, nil
}

// lateBind is a bind below a directory that the caller mounts over.
type lateBind struct {
	target string
	node   *node
}

func (n *node) late(at string, covered bool) []lateBind {
	covered = covered || n.covered
	if covered && n.kind == bindNode {
		return []lateBind{{at, n}}
	}
	var all []lateBind
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		all = append(all, n.children[name].late(path.Join(at, name), covered)...)
	}
	return all
}

// mountSkeleton mounts the tmpfs and returns a descriptor of its top, which only
// the sandbox's root user can enter. fsopen(2), move_mount(2), Linux 5.2.
func (r *Root) mountSkeleton(dir string) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen tmpfs: %w", err)
	}
	defer closeFD(fs)
	for _, o := range [][2]string{
		{"source", "sandbox"}, {"mode", "0700"}, {"size", skeletonBytes}, {"nr_inodes", skeletonInodes},
		{"uid", strconv.Itoa(hostID(r.ids.uids(), 0))}, {"gid", strconv.Itoa(hostID(r.ids.gids(), 0))},
	} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("fsconfig tmpfs %s=%s: %w", o[0], o[1], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("fsconfig create tmpfs: %w", err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("fsmount tmpfs: %w", err)
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		closeFD(mnt)
		return -1, fmt.Errorf("move_mount tmpfs to %s: %w", dir, err)
	}
	return mnt, nil
}

// builder makes a plan real below a mounted skeleton. Every name it makes or
// mounts on is a single one below a held descriptor.
type builder struct {
	uids, gids []syscall.SysProcIDMap
}

// fill makes the children of a directory of the skeleton.
func (b *builder) fill(parent int, n *node) error {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		var err error
		switch c := n.children[name]; c.kind {
		case dirNode:
			err = b.directory(parent, name, c)
		case linkNode:
			err = b.link(parent, name, c)
		case fileNode:
			err = b.file(parent, name, c)
		case bindNode:
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
	if err := b.own(parent, name, n, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := unix.Fchmodat(parent, name, n.mode, 0); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	if n.covered || len(n.children) == 0 {
		return nil
	}
	fd, err := openBeneath(parent, name)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer closeFD(fd)
	return b.fill(fd, n)
}

func (b *builder) link(parent int, name string, n *node) error {
	if err := unix.Symlinkat(n.text, parent, name); err != nil {
		return fmt.Errorf("symlink: %w", err)
	}
	return b.own(parent, name, n, unix.AT_SYMLINK_NOFOLLOW)
}

func (b *builder) file(parent int, name string, n *node) error {
	fd, err := unix.Openat(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	defer closeFD(fd)
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
	return b.own(fd, "", n, unix.AT_EMPTY_PATH)
}

func (b *builder) own(fd int, name string, n *node, flags int) error {
	if err := unix.Fchownat(fd, name, hostID(b.uids, n.uid), hostID(b.gids, n.gid), flags); err != nil {
		return fmt.Errorf("chown: %w", err)
	}
	return nil
}

// bind makes a mount point in the skeleton and attaches a source there.
func (b *builder) bind(parent int, name string, n *node) error {
	var err error
	if n.src.dir {
		err = unix.Mkdirat(parent, name, 0o755)
	} else {
		err = unix.Mknodat(parent, name, unix.S_IFREG|0o644, 0)
	}
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.MoveMount(n.src.tree, "", parent, name, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount %s: %w", n.src.path, err)
	}
	return b.within(n.src.tree, n)
}

// within attaches sources at places that an attached bind has. What is there now
// may be another thing than when it was planned, but is below the bind in any
// case, and no symbolic link.
func (b *builder) within(parent int, n *node) error {
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		if err := b.onto(parent, name, n.children[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *builder) onto(parent int, name string, n *node) error {
	fd, err := openBeneath(parent, name)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer closeFD(fd)
	there, err := examine(fd)
	if err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	isDir, want := there.mode&unix.S_IFMT == unix.S_IFDIR, n.kind == passNode || n.src.dir
	switch {
	case there.link != "" || isDir != want:
		return fmt.Errorf("it became a %s meanwhile", typeName(there.mode))
	case n.covered:
		return nil
	case n.kind == passNode:
		return b.within(fd, n)
	}
	if err := unix.MoveMount(n.src.tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount %s: %w", n.src.path, err)
	}
	return b.within(n.src.tree, n)
}
