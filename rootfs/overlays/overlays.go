// Package overlays makes the overlays of sandboxes, and the directories of their layers.
package overlays

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
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

// ErrDetached says that this kernel makes no overlay of mounts that are attached nowhere. It is
// an [errors.ErrUnsupported].
var ErrDetached = fmt.Errorf("%w before Linux 6.15", errors.ErrUnsupported)

// Mount makes the overlay as a detached mount, with the options that all overlays
// of a sandbox have. The error is [ErrDetached] if this kernel makes no such overlay.
func (o Overlay) Mount() (*os.File, error) {
	fs, err := Open(o.Renames)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	set := func(key string, dir *os.File) error {
		err := fs.SetFile(key, dir)
		if errors.Is(err, unix.EINVAL) && !takesDetached(fs) { // else overlayfs refuses the directory
			err = errors.Join(err, ErrDetached)
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

// MakeLayer makes the directories of an upper layer, empty, over a lower one.
func MakeLayer(dir, lower int) error {
	if err := unix.Mkdirat(dir, "work", 0o700); err != nil {
		return fmt.Errorf("mkdir work: %w", err)
	}
	return CopyDir(lower, ".", dir, "data")
}

// CopyDir makes a directory with the owner and the mode of another one.
func CopyDir(from int, fromName string, to int, name string) error {
	fd, err := descriptor.Open(from, fromName, descriptor.Beneath, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer descriptor.CloseFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if err := unix.Mkdirat(to, name, 0o700); err != nil {
		return fmt.Errorf("mkdir %s: %w", name, err)
	}
	if err := unix.Fchownat(to, name, mapped(st.Uid), mapped(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("chown %s: %w", name, err)
	}
	if err := unix.Fchmodat(to, name, st.Mode&0o7777, 0); err != nil {
		return fmt.Errorf("chmod %s: %w", name, err)
	}
	return nil
}

// mapped is an id as an idmapped mount shows it. An id that is not mapped becomes the
// host's root, which is nobody in a sandbox, too.
func mapped(id uint32) int {
	const overflow = 65534 // user_namespaces(7)
	if id == overflow {
		return 0
	}
	return int(id)
}

// Open begins with an overlay as all are: a copy always has its content. With
// renames a directory of the lower layers can be renamed: the upper layer then notes the
// place of the directory in the lower layers. Without, rename(2) is refused with EXDEV,
// and the kernel follows no such note.
//
// Only the kernel writes these notes (trusted extended attributes). It ignores notes in the lowest layer, which is
// the host's tree or an image. In a user namespace of its own a launcher cannot use such attributes, and there are no
// renames.
func Open(renames bool, directories ...[2]string) (*fsmount.Context, error) {
	redirect := "nofollow"
	if renames && !userns.RunningInUserNS() {
		redirect = "on"
	}
	safe := [][2]string{{"redirect_dir", redirect}, {"metacopy", "off"}, {"index", "off"}}
	return fsmount.Open("overlay", "sandbox", append(safe, directories...)...)
}
