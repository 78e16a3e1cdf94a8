package launcher

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/overlay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/integrity"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// Layers returns the overlaid trees of the sandbox. The caller must close them. With unprivileged
// the trees are for a client that has only the rights of the trees' owner: this owner appears as
// the owner of the sandbox's writes. The trees then also list the marks of directories, which
// the kernel shows only to root.
//
// A stopped sandbox has layers if its storage is on disk.
//
// Errors: [fault.ErrNotFound], [fault.ErrNotRunning].
func (s *Sandbox) Layers(ctx context.Context, unprivileged bool) ([]HeldTree, error) {
	trees, err := s.layers(ctx, unprivileged)
	if err != nil {
		return nil, s.unlessRemoved(ctx, err)
	}
	return trees, nil
}

func (s *Sandbox) layers(ctx context.Context, unprivileged bool) ([]HeldTree, error) {
	if statedir.RemovalBegun(s.session.Path()) {
		return nil, fmt.Errorf("sandbox %s %w", s.session.ID, errLeaving)
	}
	r, err := record.Read(s.session.Path())
	if err != nil {
		return nil, record.NotFound(s.session.ID, err)
	}
	if r.Init != s.session.Init() { // another sandbox has got the name
		return nil, &fault.SandboxError{ID: s.session.ID, Err: fault.ErrNotFound}
	}
	if r.Join != nil && r.Init.Lives() { // the layers would show a part of the join
		if err := s.withLock(ctx, func() error { return nil }); err != nil && !errors.Is(err, fault.ErrNotRunning) {
			return nil, err
		}
	}
	held, err := record.OpenStore(r.Init)
	if err != nil {
		return s.stoppedLayers(ctx, unprivileged)
	}
	defer held.Close()
	if err := s.makeWhole(ctx, r, held); err != nil {
		return nil, err
	}
	if unprivileged {
		if err := s.launcher.handed.Add(s.session.ID, r, held); err != nil {
			return nil, err
		}
	}
	b := &layerReader{box: s.session.Sandbox, record: r, store: held, unprivileged: unprivileged, image: layerImages{s.launcher.images}.Mount}
	// Only a mount that shows the inside ids can be mapped to the ids of the owner.
	if files := r.Backend(s.launcher.Roots); unprivileged && files.Durable() {
		if b.store, err = files.Mount(); err != nil {
			return nil, err
		}
		defer b.store.Close()
		b.inside = true
	}
	trees, err := b.trees()
	if err == nil && unprivileged && !r.Init.Lives() { // a removal may have begun before the note of handed.Add
		return nil, errors.Join(fmt.Errorf("sandbox %s %w", s.session.ID, fault.ErrNotRunning), closeAllTrees(trees))
	}
	return trees, err
}

// makeWhole has the renamed directories of the host be whole in the layers, so that the layers can be read.
func (s *Sandbox) makeWhole(ctx context.Context, r record.Record, store *os.File) error {
	renamed, err := overlay.HasPartial(ctx, r, store)
	if err != nil && !errors.Is(err, layer.ErrTooDeep) { // the list of changes tells of ErrTooDeep
		// A damaged file system cannot be read.
		if damage := integrity.Verify(ctx, s.launcher.Roots, r, true); errors.Is(damage, fault.ErrDamaged) {
			return &fault.SandboxError{ID: s.session.ID, Err: damage}
		}
		return err
	}
	if !renamed {
		return nil
	}
	return s.withLock(ctx, func() error { return s.session.Overlay.MakeWhole(ctx) })
}

// Untie has the kernel take the content of renamed directories from the layers only, so that the host's directories can
// go. A process in the sandbox that uses such a directory is an error. So is a directory that was renamed since u.Since. A
// stopped sandbox needs nothing.
//
// Errors: [fault.ErrBusy], [fault.ErrNotFound].
func (s *Sandbox) Untie(ctx context.Context, u protocol.Untie) error {
	r, err := record.Read(s.session.Path())
	if err != nil {
		return record.NotFound(s.session.ID, err)
	}
	store, err := record.OpenStore(r.Init)
	if err != nil {
		return erase.IgnoreMissing(err)
	}
	store.Close()
	return s.withLock(ctx, func() error { return s.session.Overlay.Untie(ctx, u) })
}

// A layerReader opens the layers of one sandbox.
type layerReader struct {
	box    *record.Sandbox
	record record.Record
	store  *os.File
	// inside says that the store shows the ids as processes inside see them.
	inside bool
	// unprivileged says that the layers are for a client that has only the rights of the trees'
	// owner.
	unprivileged bool
	// image mounts an image that the sandbox uses.
	image func(record.Record, string) (*os.File, error)
}

// trees opens the layers of all trees.
func (b *layerReader) trees() (trees []HeldTree, err error) {
	trees = []HeldTree{}
	defer func() {
		if err != nil {
			_ = closeAllTrees(trees) // the first error counts
			trees = nil
		}
	}()
	for i, t := range b.record.Trees {
		trees = append(trees, HeldTree{Overlay: b.record.Describe(t, b.inside)})
		if trees[i].stamps, err = openStamps(b.box.StampsPath(i, t)); err != nil {
			return nil, err
		}
		if err := b.tree(t, &trees[i]); err != nil {
			return nil, err
		}
		if trees[i].Host, err = b.hostTree(t); err != nil {
			return nil, err
		}
	}
	return trees, nil
}

// hostTree opens the directory below the layers, where the client does not find it at its path.
func (b *layerReader) hostTree(t record.Tree) (*os.File, error) {
	if t.Image == "" {
		return t.Lost(b.unprivileged), nil
	}
	image, err := b.image(b.record, t.Image)
	if err != nil {
		return nil, err
	}
	shown, err := record.ReadOnly(image)
	if shown == image { // the kernel makes no other mount of it
		return shown, err
	}
	return shown, errors.Join(err, image.Close())
}

// tree opens the layers of one tree, the uppermost first.
func (b *layerReader) tree(t record.Tree, out *HeldTree) error {
	for _, number := range t.Layers {
		name := path.Join("layer", strconv.Itoa(number), "data")
		if err := b.add(out, b.store, name, b.inside); err != nil {
			return err
		}
	}
	for _, ref := range b.record.Stacks[t.Path].Below {
		inside := b.unprivileged || b.inside
		image, err := b.box.OpenBelow(b.record, ref, inside)
		if err != nil {
			return err
		}
		err = b.add(out, image, ref.Dir, inside)
		image.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// add opens one layer. inside says that top shows the ids as processes inside see them.
func (b *layerReader) add(out *HeldTree, top *os.File, name string, inside bool) error {
	shown, plain, err := openLayer(top, name)
	if err == nil {
		out.Layers = append(out.Layers, layer.Layer{Dir: shown})
		if !b.unprivileged {
			_ = closeOther(plain, shown) // nothing was written to the file
			return nil
		}
		out.plain = append(out.plain, plain)
		err = b.record.ShowToOwner(&out.Overlay, &out.Layers[len(out.Layers)-1], inside)
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", name, out.Path, err)
	}
	return nil
}

// openLayer opens one layer of a store for reading: shown is the file for clients, and plain the
// directory itself. Both can be one file.
func openLayer(top *os.File, name string) (shown, plain *os.File, err error) {
	plain, err = descriptor.OpenFile(int(top.Fd()), name, descriptor.OneMount, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, nil, err
	}
	if shown, err = record.ReadOnly(plain); err != nil {
		return nil, nil, errors.Join(err, plain.Close())
	}
	return shown, plain, nil
}

// A HeldTree is a tree with open layers. Its lists of stamps and marks can be too long for memory.
// So Overlay.Stamps, and the Marks of the Layers, are nil, and the methods below write the lists.
type HeldTree struct {
	layer.Overlay
	// stamps is the file with the list of stamps, or nil.
	stamps *os.File
	// plain are the layers whose marks are listed; empty for a client that can read the marks.
	plain []*os.File
}

// Stamped tells whether the tree has a list of stamps, and Listed whether its layers have
// lists of marks.
func (t *HeldTree) Stamped() bool { return t.stamps != nil }

// Listed is described at Stamped.
func (t *HeldTree) Listed() bool { return len(t.plain) > 0 }

// WriteStamps writes the list of stamps, as [protocol.StampReader] reads it.
func (t *HeldTree) WriteStamps(w io.Writer) error {
	_, err := io.Copy(w, io.NewSectionReader(t.stamps, 0, maxStamps))
	return err
}

// maxMarks bounds the list of a layer's marks, in bytes.
const maxMarks = 32 << 20

// WriteMarks writes the list of marks of a layer, as [protocol.DecodeMarks] reads it.
func (t *HeldTree) WriteMarks(ctx context.Context, number int, w io.Writer) error {
	out := bufio.NewWriterSize(w, protocol.PieceSize)
	var line []byte
	size := 0
	err := layer.EachMark(ctx, t.plain[number], func(path string, m layer.Mark) error {
		line = protocol.AppendMark(line[:0], path, m)
		if size += len(line); size > maxMarks {
			return fmt.Errorf("the list of the changed directories below %s takes more than %d bytes; look at them as root", t.Path, maxMarks)
		}
		_, err := out.Write(line)
		return err
	})
	return errors.Join(err, out.Flush())
}

// Close closes the files of the tree. It may be called again.
func (t *HeldTree) Close() error {
	err := t.Overlay.Close()
	for i, f := range t.plain {
		err = errors.Join(err, closeOther(f, t.Layers[i].Dir))
	}
	descriptor.Close(t.stamps)
	t.Layers, t.Host, t.plain, t.stamps = nil, nil, nil, nil
	return err
}

// closeOther closes f, unless f and other are the same file.
func closeOther(f, other *os.File) error {
	if f == other {
		return nil
	}
	return f.Close()
}

func closeAllTrees(trees []HeldTree) (err error) {
	for i := range trees {
		err = errors.Join(err, trees[i].Close())
	}
	return err
}

// layerImages are the images below layers: [overlay.Images].
type layerImages struct{ keeper *images.Keeper }

func (i layerImages) Mount(r record.Record, id string) (*os.File, error) {
	root, err := i.keeper.Open(context.Background(), r.UID, id)
	if err != nil {
		return nil, fmt.Errorf("image of the sandbox: %w", err)
	}
	return root.Tree, nil
}

func (i layerImages) Use(uid uint32, id, by string) error {
	return i.keeper.Hold(context.Background(), uid, id, by)
}

func (i layerImages) Release(by string) error { return i.keeper.Release(context.Background(), by) }
