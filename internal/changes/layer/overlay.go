package layer

import (
	"errors"
	"os"
	"time"
)

// An Overlay is a directory of the host that a sandbox has an overlay of, with the sandbox's
// writes.
type Overlay struct {
	OverlayHead
	// Layers are the upper one first, then those below it that are frozen, without
	// the host's tree.
	Layers []Layer
	// Stamps tell how Applied changes have left paths of the host's tree: that is no
	// change of others.
	Stamps map[string]Stamp
	// Host is the overlaid directory if Path leads to another directory, or to none.
	// Nil: Path leads to the directory, or nobody can find the directory any more. An image is always there.
	Host *os.File
}

// An OverlayHead describes an overlay.
type OverlayHead struct {
	// Path of the tree, on the host and in the sandbox.
	Path string `json:"path"`
	// Device and Inode of the directory on the host that was overlaid; 0 where they are
	// not known.
	Device uint64 `json:"device,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
	// Since is the time of the overlay: the sandbox may not have seen later changes of the
	// host.
	Since time.Time `json:"since"`
	// Owner is the owner of the host's tree: whose the files of the sandbox's user
	// are there. With OnDisk there is no such one: an id on the host is the same id
	// inside.
	Owner  Owner `json:"owner"`
	OnDisk bool  `json:"on_disk,omitempty"`
	// Image says that the tree is the root of an image: Host is the image, and Path is only in the sandbox.
	Image bool `json:"image,omitempty"`
	// User is as whom the files of the sandbox's user show in the layers. Id i of
	// the inside, of any other, shows as Base+i.
	User Owner `json:"user"`
	Base int64 `json:"base"`
	// Partial says that a transaction had joined only in part when the sandbox stopped.
	Partial bool `json:"partial,omitempty"`
}

// Owner is a user and a group.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Close lets go of the layers.
func (t *Overlay) Close() error {
	var errs []error
	for _, l := range t.Layers {
		errs = append(errs, l.Dir.Close())
	}
	if t.Host != nil {
		errs = append(errs, t.Host.Close())
	}
	return errors.Join(errs...)
}
