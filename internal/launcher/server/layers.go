package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// withFiles calls f with the peer's sandbox, which may have stopped. It keeps no handle of a
// stopped sandbox.
func (c *call) withFiles(ctx context.Context, f func(Sandbox) error) error {
	err := c.server.handles.withSandbox(ctx, c.request.ID, c.checkedOwner(f))
	if !errors.Is(err, fault.ErrNotRunning) {
		return err
	}
	box, err := c.server.core.OpenStopped(ctx, c.request.ID)
	if err != nil {
		return err
	}
	defer box.Release()
	return c.checkedOwner(f)(box)
}

// layers hands out the writes of a sandbox: one tree in each answer, followed by answers with the
// tree's lists.
func (c *call) layers(ctx context.Context) (*protocol.Answer, error) {
	if err := c.peer.lists.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.peer.lists.Release(1)
	var trees []launcher.HeldTree
	err := c.withFiles(ctx, func(box Sandbox) (err error) {
		// Other peers than root have only the rights of the trees' owner.
		trees, err = box.Layers(ctx, !c.peer.all)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		for i := range trees {
			_ = trees[i].Close() // nothing was written to the trees
		}
	}()
	for i := range trees {
		if err := c.sendTree(ctx, &trees[i]); err != nil {
			return nil, err
		}
		_ = trees[i].Close() // as above
	}
	return &protocol.Answer{}, nil
}

// sendTree sends one tree with the descriptors of its layers, and then its lists.
func (c *call) sendTree(ctx context.Context, t *launcher.HeldTree) error {
	w := &protocol.WireTree{OverlayHead: t.OverlayHead, Stamped: t.Stamped(), Found: t.Host != nil}
	var files []*os.File
	for _, l := range t.Layers {
		files = append(files, l.Dir)
		w.Listed = append(w.Listed, t.Listed())
	}
	if w.Found {
		files = append(files, t.Host)
	}
	if len(files) > channel.MaxFiles {
		return fmt.Errorf("%s has %d layers, more than can be handed out", t.Path, len(t.Layers))
	}
	if err := c.deliver(ctx, &protocol.Answer{Tree: w}, files...); err != nil {
		return err
	}
	for i, listed := range w.Listed {
		if !listed {
			continue
		}
		err := c.sendList(ctx, func(w io.Writer) error { return t.WriteMarks(ctx, i, w) })
		if err != nil {
			return err
		}
	}
	if !w.Stamped {
		return nil
	}
	return c.sendList(ctx, t.WriteStamps)
}

// sendList sends a list in pieces.
func (c *call) sendList(ctx context.Context, write func(io.Writer) error) error {
	p := &pieces{ctx: ctx, call: c}
	out := bufio.NewWriterSize(p, protocol.PieceSize)
	if err := write(out); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return c.deliver(ctx, &protocol.Answer{Piece: &protocol.Piece{Last: true}})
}

// pieces send the bytes that are written to them.
type pieces struct {
	ctx  context.Context
	call *call
}

func (p *pieces) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		some := b[:min(len(b), protocol.PieceSize)]
		if err := p.call.deliver(p.ctx, &protocol.Answer{Piece: &protocol.Piece{Bytes: some}}); err != nil {
			return n, err
		}
		n, b = n+len(some), b[len(some):]
	}
	return n, nil
}
