package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// An Overlay has the directories of a further overlay, held by descriptors, of mounts in
// any namespace or in none.
type Overlay struct {
	// Lower are the lower layers, the uppermost first.
	Lower []*os.File
	// Upper and Work are on one file system.
	Upper, Work *os.File
	// Renames says that directories of the lower layers can be renamed. All mounts below the
	// overlay must lie in its top directory.
	Renames bool
}

// ErrDetachedOverlay says that this kernel makes no overlay of mounts that are attached nowhere. It is
// an [errors.ErrUnsupported].
var ErrDetachedOverlay = fmt.Errorf("%w before Linux 6.15", errors.ErrUnsupported)

// Mount makes the overlay as a detached mount, with the options that all overlays
// of a sandbox have. The error is [ErrDetachedOverlay] if this kernel makes no such overlay.
func (o Overlay) Mount() (*os.File, error) {
	fs, err := openOverlay(o.Renames)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	set := func(key string, dir *os.File) error {
		err := fs.SetFile(key, dir)
		if errors.Is(err, unix.EINVAL) && !takesDetached(fs) { // else overlayfs refuses the directory
			err = errors.Join(err, ErrDetachedOverlay)
		}
		return err
	}
	for _, dir := range o.Lower {
		if err := set("lowerdir+", dir); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(set("upperdir", o.Upper), set("workdir", o.Work)); err != nil {
		return nil, err
	}
	mnt, err := fs.Mount()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(mnt), "overlay"), nil
}

// takesDetached says whether an overlay can have a layer that is attached nowhere. It is true if
// this cannot be told.
func takesDetached(overlay *fsmount.Context) bool {
	tmpfs, err := fsmount.Open("tmpfs", "probe")
	if err != nil {
		return true
	}
	defer tmpfs.Close()
	fd, err := tmpfs.Mount()
	if err != nil {
		return true
	}
	dir := os.NewFile(uintptr(fd), "probe")
	defer dir.Close()
	return !errors.Is(overlay.SetFile("lowerdir+", dir), unix.EINVAL)
}

// MakeLayer makes a layer's two directories in an empty one. The top of the upper layer
// has the owner and the mode of the directory below.
func MakeLayer(dir, below *os.File) (upper, work *os.File, err error) {
	if err := makeLayer(int(dir.Fd()), int(below.Fd())); err != nil {
		return nil, nil, err
	}
	if upper, err = OpenDir(dir, "data"); err != nil {
		return nil, nil, err
	}
	if work, err = OpenDir(dir, "work"); err != nil {
		upper.Close()
		return nil, nil, err
	}
	return upper, work, nil
}

// OpenDir opens a directory beneath another one for reading. It follows no link.
func OpenDir(dir *os.File, name string) (*os.File, error) {
	return descriptor.OpenDir(dir, name)
}

// OpenLower opens an overlaid directory of the host once more, for a sandbox that is up: a
// detached, read-only mount, with the ids of the overlay. Another directory with the same
// path is refused.
func OpenLower(cfg Config, t Tree, uids, gids []specs.LinuxIDMapping) (_ *os.File, err error) {
	p, err := emptyPlan(&cfg)
	if err != nil {
		return nil, err
	}
	p.rules = p.rules.overlaying()
	p.rules.whole = true // was decided when the sandbox was made
	p.files, p.peer = nil, nil
	defer p.close()
	as := asUser
	if t.OnDisk {
		as = asOnDisk
	}
	s, err := p.openNamed(p.rules, t.Path, false, as)
	if err != nil {
		return nil, fmt.Errorf("overlay %w", err)
	}
	now, err := identify(s.fd)
	if err != nil {
		return nil, fmt.Errorf("statx %s: %w", t.Path, err)
	}
	if now.device() != t.Device || now.inode != t.Inode {
		return nil, fmt.Errorf("overlay %s: it is another directory than when the sandbox was made", t.Path)
	}
	s.uid, s.gid = t.UID, t.GID
	var spaces userns.Namespaces
	defer spaces.Close()
	r := &Root{plan: p, ids: idsOf(&cfg, uids, gids)}
	if err := r.takeAlone(s, &spaces); err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(s.tree), t.Path)
	s.tree = -1
	return tree, nil
}

// OpenImage makes a lower layer of a mounted image, with the ids of a sandbox that is up, and returns the layer. The
// mount of the image stays the caller's; before Linux 6.15 it is used up.
func OpenImage(tree *os.File, uids, gids []specs.LinuxIDMapping) (*os.File, error) {
	layer, err := copyMount(int(tree.Fd()))
	if errors.Is(err, unix.EINVAL) { // the kernel copies no detached mount
		layer, err = unix.FcntlInt(tree.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("lower layer of the image: %w", err)
	}
	file := os.NewFile(uintptr(layer), imageName)
	if err := mapFrozen(file, userns.Map{UIDs: sysMappings(uids), GIDs: sysMappings(gids)}); err != nil {
		return nil, errors.Join(fmt.Errorf("idmap the image: %w", err), file.Close())
	}
	return file, nil
}

// OpenPoints opens the mount points in a store that a tree lacks. Nil: the tree lacks none, or an older version has made
// the sandbox.
func OpenPoints(store *os.File, t Tree) (*os.File, error) {
	f, err := OpenDir(store, pointsOf(t.Layer, t.Image))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// device is the number of the object's file system in one word.
func (i identity) device() uint64 { return unix.Mkdev(i.major, i.minor) }

// MapFrozen makes a detached mount of another sandbox's store read-only, and has its
// ids, which are of the inside, be those that a sandbox with these maps has.
func MapFrozen(f *os.File, uids, gids []specs.LinuxIDMapping) error {
	host := syscall.SysProcIDMap{ContainerID: storeRoot, HostID: 0, Size: 1}
	if err := mapFrozen(f, userns.Map{UIDs: append(sysMappings(uids), host), GIDs: append(sysMappings(gids), host)}); err != nil {
		return fmt.Errorf("idmap the layers of a snapshot: %w", err)
	}
	return nil
}

func mapFrozen(f *os.File, ids userns.Map) error {
	var spaces userns.Namespaces
	defer spaces.Close()
	space, err := spaces.Descriptor(ids)
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(space)}
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(int(f.Fd()), "", unix.AT_EMPTY_PATH, &attr))
}

func sysMappings(in []specs.LinuxIDMapping) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, m := range in {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return out
}
