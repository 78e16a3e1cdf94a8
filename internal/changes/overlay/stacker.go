package overlay

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// A stacker makes the overlays of a sandbox's places. An image that several layers
// lie in, those of a snapshot, it mounts once.
type stacker struct {
	roots  record.Roots
	record record.Record
	store  *os.File
	image  func(record.Record, string) (*os.File, error)
	// images are the snapshots', by their names: read-only, with the sandbox's ids.
	images map[string]*os.File
}

// stack makes the overlays of the covers, each with a new layer in the directory that
// layer makes, and then the mounts that show one of them at a second place.
func (k *Keeper) stack(r record.Record, store *os.File, all covers, layer func(i int, c *cover) (*os.File, error)) error {
	s := &stacker{roots: k.Roots, record: r, store: store, image: k.images.Mount, images: map[string]*os.File{}}
	defer func() { descriptor.Close(slices.Collect(maps.Values(s.images))...) }()
	for i, c := range all {
		if c.Same != "" {
			continue
		}
		dir, err := layer(i, c)
		if err != nil {
			return err
		}
		err = s.stack(dir, c)
		dir.Close()
		if err != nil {
			return err
		}
	}
	for _, c := range all {
		if c.Same == "" {
			continue
		}
		at := slices.IndexFunc(all, func(o *cover) bool { return o.Path == c.Same })
		var err error
		if c.mount, err = mountns.Clone(all[at].mount, false); err != nil {
			return err
		}
	}
	return nil
}

// stack makes a cover's overlay: the present mount below, a new layer in dir on top.
func (k *stacker) stack(dir *os.File, c *cover) error {
	var o rootfs.Overlay
	defer func() { descriptor.Close(append(o.Lower, o.Upper, o.Work)...) }()
	var err error
	if o.Upper, o.Work, err = rootfs.MakeLayer(dir, c.live); err != nil {
		return fmt.Errorf("layer for %s: %w", c.Path, err)
	}
	if o.Lower, err = k.lowerLayers(c); err != nil {
		return err
	}
	o.Renames = c.renames(k.record.Places())
	if c.mount, err = o.Mount(); errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	if err != nil {
		return fmt.Errorf("overlay of %s: %w", c.Path, err)
	}
	return nil
}

// lowerLayers are the layers of a place now: the sandbox's own, those of a snapshot, and the
// host's.
func (k *stacker) lowerLayers(c *cover) (all []*os.File, err error) {
	defer func() {
		if err != nil {
			descriptor.Close(all...)
			all = nil
		}
	}()
	if c.Host != "" {
		f, err := mountns.CloneFile(c.lower)
		return append(all, f), err
	}
	for _, name := range k.record.Own(c.Place) {
		f, err := descriptor.OpenDir(k.store, name)
		if err != nil {
			return all, err
		}
		all = append(all, f)
	}
	for _, ref := range k.record.Stacks[c.Path].Below {
		f, err := k.frozen(ref)
		if err != nil {
			return all, err
		}
		all = append(all, f)
	}
	if c.Tree == nil {
		return all, nil
	}
	lowest, err := k.lowest(*c.Tree)
	return append(all, lowest...), err
}

// lowest are the layers of a tree that are not writable: the mount points that it lacks, and its files.
func (k *stacker) lowest(t record.Tree) (all []*os.File, err error) {
	r := k.record
	at := slices.IndexFunc(r.Trees, func(o record.Tree) bool { return o.Path == t.Path })
	points, err := rootfs.OpenPoints(k.store, rootfs.Tree{Layer: at, Image: t.Image != ""})
	if err != nil {
		return nil, err
	}
	if points != nil {
		all = append(all, points)
	}
	var files *os.File
	if t.Image != "" {
		files, err = k.openImage(t.Image)
	} else {
		files, err = rootfs.OpenLower(r.TreeConfig(k.roots), rootfs.Tree{
			Path: t.Path, UID: t.UID, GID: t.GID, OnDisk: t.OnDisk, Device: t.Device, Inode: t.Inode,
		}, r.UIDMappings, r.GIDMappings)
	}
	if err != nil {
		return all, err
	}
	return append(all, files), nil
}

// openImage opens an image as a lower layer.
func (k *stacker) openImage(id string) (*os.File, error) {
	tree, err := k.image(k.record, id)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	return rootfs.OpenImage(tree, k.record.UIDMappings, k.record.GIDMappings)
}

// frozen opens a layer of another image.
func (k *stacker) frozen(ref record.LayerRef) (*os.File, error) {
	image := k.images[ref.Image]
	if image == nil {
		var err error
		if image, err = k.roots.OpenBelow(k.record, ref, false); err != nil {
			return nil, err
		}
		k.images[ref.Image] = image
	}
	// A mount of its own: that of the image ends with the stacker.
	dir, err := unix.OpenTree(int(image.Fd()), ref.Dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("layer %s of a snapshot: %w", ref.Dir, err)
	}
	return os.NewFile(uintptr(dir), ref.Dir), nil
}
