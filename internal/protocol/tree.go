package protocol

import (
	"context"
	"os"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// WireTree is a Tree on the wire. Beside it come the directories of the layers and, if
// Found says so, the Host directory. Then follow, in answers of their own, the lists: the
// marks of each layer that Listed names and, if Stamped says so, the stamps.
type WireTree struct {
	layer.OverlayHead
	Listed  []bool `json:"listed"`
	Stamped bool   `json:"stamped,omitempty"`
	Found   bool   `json:"found,omitempty"`
}

// A LayersAnswer is a tree, or a piece of a list of the tree before. The last answer has neither.
type LayersAnswer struct {
	Tree  *WireTree `json:"tree,omitempty"`
	Piece *Piece    `json:"piece,omitempty"`
}

// Layers are the trees that a sandbox has overlays of. The caller closes them.
//
// Errors: ErrNotFound, ErrNotRunning, ErrRefused where the client still holds the layers
// of too many removed sandboxes.
func (c *Client) Layers(ctx context.Context, id string) (_ []layer.Overlay, err error) {
	ch, err := OpLayers.open(ctx, c, About[None]{id, &None{}})
	if err != nil {
		return nil, err
	}
	defer func() {
		ch.Close()
		ch.Discard()
	}()
	trees := []layer.Overlay{}
	defer func() {
		if err != nil {
			for _, t := range trees {
				_ = t.Close() // the first error counts
			}
		}
	}()
	for {
		a, files, err := OpLayers.receive(ctx, c, ch)
		if err != nil {
			return nil, err
		}
		if a.Tree == nil {
			descriptor.Close(files...)
			return trees, nil
		}
		tree, err := a.Tree.withoutLists(files)
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

// withoutLists is the tree without its lists, with the files that came beside it. On an error
// they stay the caller's.
func (w *WireTree) withoutLists(files []*os.File) (layer.Overlay, error) {
	t := layer.Overlay{OverlayHead: w.OverlayHead}
	want := len(w.Listed)
	if w.Found {
		want++
	}
	if len(files) != want {
		return t, errAnswer
	}
	for i := range w.Listed {
		t.Layers = append(t.Layers, layer.Layer{Dir: files[i]})
	}
	if w.Found {
		t.Host = files[want-1]
	}
	return t, nil
}

// readLists reads the lists that follow a tree.
func (c *Client) readLists(ctx context.Context, ch *channel.Conn, w *WireTree, t *layer.Overlay) error {
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

// An AppliedRequest has stamps of one tree.
type AppliedRequest struct {
	Tree   string  `json:"tree"`
	Stamps []Stamp `json:"stamps"`
}

// Applied tells a sandbox how changes of a tree were applied on the host. A zero
// stamp is of a path at which there is nothing any more.
//
// Errors: ErrNotFound, ErrNotRunning, *ConfigError for a tree that it has not.
func (c *Client) Applied(ctx context.Context, id, tree string, stamps map[string]layer.Stamp) error {
	var some []Stamp
	size := 0
	send := func() error {
		err := Tell(ctx, c, OpApplied, id, AppliedRequest{tree, some})
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

// An Untie is a question of a client that has read all content for an apply.
type Untie struct {
	// Since is a time before the client began to read, or before it got the marks of the layers. It is an error if a
	// directory of the host was renamed after this time, also if it was renamed back.
	Since time.Time `json:"since"`
	// Directories says that the apply takes a directory away from the host. Then the directories are made free to go that
	// were renamed in the sandbox.
	Directories bool `json:"directories,omitempty"`
}
