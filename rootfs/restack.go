package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/overlays"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/userns"
)

// Overlay is [overlays.Overlay].
type Overlay = overlays.Overlay

// ErrDetachedOverlay is [overlays.ErrDetached].
var ErrDetachedOverlay = overlays.ErrDetached

// MakeLayer makes a layer's two directories in an empty one. The top of the upper layer
// has the owner and the mode of the directory below.
func MakeLayer(dir, below *os.File) (upper, work *os.File, err error) {
	if err := overlays.MakeLayer(int(dir.Fd()), int(below.Fd())); err != nil {
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
	p.sources.rules = p.sources.rules.Overlaying()
	p.sources.rules.Whole = true // was decided when the sandbox was made
	p.sources.files, p.sources.peer = nil, nil
	defer p.close()
	as := asUser
	if t.OnDisk {
		as = asOnDisk
	}
	s, err := p.sources.openNamed(p.sources.rules, t.Path, false, as)
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
	r := &Root{plan: p, ids: userns.IDsOf(cfg.IDBase, cfg.User.owner(), userns.FromOCI(uids, gids))}
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
	if err := mapFrozen(file, userns.FromOCI(uids, gids)); err != nil {
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
	if err := mapFrozen(f, userns.FromOCI(uids, gids).With(storeRoot, 0)); err != nil {
		return fmt.Errorf("idmap the layers of a snapshot: %w", err)
	}
	return nil
}

func mapFrozen(f *os.File, ids userns.Map) error {
	space, err := userns.New(ids, 0)
	if err != nil {
		return err
	}
	defer descriptor.CloseFD(space)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Userns_fd: uint64(space)}
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(int(f.Fd()), "", unix.AT_EMPTY_PATH, &attr))
}

// OpenWorkspace checks the workspace of a Config as [Open] does and returns its
// tree alone: a detached mount, for a sandbox that is up already and whose user
// namespace has these maps. The caller attaches and closes it. Nothing else of the
// Config is looked at.
func OpenWorkspace(cfg Config, uids, gids []specs.LinuxIDMapping) (*os.File, error) {
	var spaces userns.Namespaces
	defer spaces.Close()
	return openWorkspace(cfg, uids, gids, &spaces)
}

// OpenWorkspace is [OpenWorkspace] for a sandbox in which no command has run.
func (s *Shown) OpenWorkspace(cfg Config, uids, gids []specs.LinuxIDMapping) (*os.File, error) {
	return openWorkspace(cfg, uids, gids, &s.spaces)
}

func openWorkspace(cfg Config, uids, gids []specs.LinuxIDMapping, spaces *userns.Namespaces) (*os.File, error) {
	p, err := emptyPlan(&cfg)
	if err != nil {
		return nil, err
	}
	defer p.close()
	s, err := p.sources.openNamed(p.sources.rules, cfg.Workspace, true, asUser)
	if err == nil && !s.dir {
		err = fmt.Errorf("%s is not a directory", s.path)
	}
	if err != nil {
		return nil, fmt.Errorf("workspace %w", err)
	}
	r := &Root{plan: p, ids: userns.IDsOf(cfg.IDBase, cfg.User.owner(), userns.FromOCI(uids, gids))}
	if err := r.takeLate(s, spaces); err != nil {
		return nil, err
	}
	tree := os.NewFile(uintptr(s.tree), s.path)
	s.tree = -1
	return tree, nil
}

// takeLate takes a writable source's tree once the id maps can change no more.
func (r *Root) takeLate(s *source, spaces *userns.Namespaces) error {
	err := r.idmap(s, spaces)
	if err == nil || !unsupported(err) {
		return err
	}
	m, tableErr := r.plan.mounted.checkedMountsOf(s)
	if tableErr != nil {
		return tableErr
	}
	if r.ids.Direct == nil || *r.ids.Direct != s.owner() {
		return errors.Join(fmt.Errorf("workspace %s is on %s, which cannot be idmapped, and the user of a sandbox that is up cannot change: make the sandbox with this workspace",
			s.path, m.fsType), err)
	}
	return s.clone(-1, true)
}
