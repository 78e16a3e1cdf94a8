package protocol

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A Tree is a directory of the host that a sandbox has an overlay of, with the sandbox's
// writes.
type Tree struct {
	TreeHead
	// Layers are the upper one first, then those below it that are frozen, without
	// the host's tree.
	Layers []TreeLayer
	// Stamps tell how Applied changes have left paths of the host's tree: that is no
	// change of others.
	Stamps map[string]layer.Stamp
	// Host is the overlaid directory if Path leads to another directory, or to none.
	// Nil: Path leads to the directory, or nobody can find the directory any more. An image is always there.
	Host *os.File
}

// A TreeHead describes a tree.
type TreeHead struct {
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

// A TreeLayer is one layer of a tree.
type TreeLayer struct {
	// Dir is a detached mount of the layer: read-only, nosuid, nodev and noexec.
	// Before Linux 6.15 it is the directory itself.
	Dir *os.File
	// Marks are those of the layer's directories. Nil for clients that may read them
	// from extended attributes.
	Marks map[string]layer.Mark
}

// Close lets go of the layers.
func (t *Tree) Close() error {
	var errs []error
	for _, l := range t.Layers {
		errs = append(errs, l.Dir.Close())
	}
	if t.Host != nil {
		errs = append(errs, t.Host.Close())
	}
	return errors.Join(errs...)
}

// WireTree is a Tree on the wire. Beside it come the directories of the layers and, if
// Found says so, the Host directory. Then follow, in answers of their own, the lists: the
// marks of each layer that Listed names and, if Stamped says so, the stamps.
type WireTree struct {
	TreeHead
	Listed  []bool `json:"listed"`
	Stamped bool   `json:"stamped,omitempty"`
	Found   bool   `json:"found,omitempty"`
}

// Layers are the trees that a sandbox has overlays of. The caller closes them.
//
// Errors: ErrNotFound, ErrNotRunning, ErrRefused where the client still holds the layers
// of too many removed sandboxes.
func (c *Client) Layers(ctx context.Context, id string) (_ []Tree, err error) {
	ch, err := c.open(ctx, &Request{Op: OpLayers, ID: id}, nil, channel.MaxFiles)
	if err != nil {
		return nil, err
	}
	defer func() {
		ch.Close()
		ch.Discard()
	}()
	trees := []Tree{}
	defer func() {
		if err != nil {
			for _, t := range trees {
				_ = t.Close() // the first error counts
			}
		}
	}()
	for {
		a, files, err := c.receive(ctx, ch)
		if err != nil {
			return nil, err
		}
		if a.Tree == nil {
			descriptor.Close(files...)
			return trees, nil
		}
		tree, err := a.Tree.plain(files)
		if err != nil {
			descriptor.Close(files...)
			return nil, err
		}
		trees = append(trees, tree)
		if err := c.readLists(ctx, ch, a.Tree, &trees[len(trees)-1]); err != nil {
			return nil, err
		}
	}
}

// plain is the tree without its lists, with the files that came beside it. On an error
// they stay the caller's.
func (w *WireTree) plain(files []*os.File) (Tree, error) {
	t := Tree{TreeHead: w.TreeHead}
	want := len(w.Listed)
	if w.Found {
		want++
	}
	if len(files) != want {
		return t, errAnswer
	}
	for i := range w.Listed {
		t.Layers = append(t.Layers, TreeLayer{Dir: files[i]})
	}
	if w.Found {
		t.Host = files[want-1]
	}
	return t, nil
}

// readLists reads the lists that follow a tree.
func (c *Client) readLists(ctx context.Context, ch *channel.Conn, w *WireTree, t *Tree) error {
	for i, listed := range w.Listed {
		if !listed {
			continue
		}
		b, err := c.readList(ctx, ch)
		if err != nil {
			return err
		}
		if t.Layers[i].Marks, err = DecodeMarks(b); err != nil {
			return err
		}
	}
	if !w.Stamped {
		return nil
	}
	b, err := c.readList(ctx, ch)
	if err != nil {
		return err
	}
	t.Stamps, err = DecodeStamps(b)
	return err
}

// Applied tells a sandbox how changes of a tree were applied on the host. A zero
// stamp is of a path at which there is nothing any more.
//
// Errors: ErrNotFound, ErrNotRunning, *ConfigError for a tree that it has not.
func (c *Client) Applied(ctx context.Context, id, tree string, stamps map[string]layer.Stamp) error {
	var some []Stamp
	size := 0
	send := func() error {
		err := c.do(ctx, &Request{Op: OpApplied, ID: id, Tree: tree, Stamps: some})
		some, size = some[:0], 0
		return err
	}
	for _, s := range StampList(stamps) {
		if size += len(s.Path) + stampSize; size > stampsAtOnce || len(some) == stampCount {
			if err := send(); err != nil {
				return err
			}
			size = len(s.Path) + stampSize
		}
		some = append(some, s)
	}
	if len(some) == 0 {
		return nil
	}
	return send()
}

const (
	// stampsAtOnce is how many bytes of paths go with one call. A request has them in
	// base 64, each with a time and an inode, and both sides have several copies of it.
	stampsAtOnce = MaxRequest / 4
	// stampSize is more than a stamp takes there beside its path.
	stampSize = 100
	// stampCount is how many go with one call, each of at most six values.
	stampCount = MaxValues/6 - 10
)

// Verify asks whether a sandbox's files can be trusted. With sync it first brings all
// writes to disk: without an error all that was read before the call is as it was written.
// Else it asks for an error that is known already.
//
// Errors: ErrDamaged, ErrNotFound, ErrNotRunning.
func (c *Client) Verify(ctx context.Context, id string, sync bool) error {
	return c.do(ctx, &Request{Op: OpVerify, ID: id, Sync: sync})
}

// An Untie is a question of a client that has read all content for an apply.
type Untie struct {
	// Since is a time before the client began to read, or before it got the marks of the layers. It is an error if a
	// directory of the host was renamed after this time, also if it was renamed back.
	Since time.Time `json:"since"`
	// Directories says that the apply takes a directory away from the host. Then the directories are made free to go that
	// were renamed in the sandbox.
	Directories bool `json:"directories,omitempty"`
}

// Untie asks whether an apply can begin.
//
// Errors: ErrBusy, ErrNotFound.
func (c *Client) Untie(ctx context.Context, id string, u Untie) error {
	return c.do(ctx, &Request{Op: OpUntie, ID: id, Untie: &u})
}
