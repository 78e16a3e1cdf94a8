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
	err := c.withSandbox(ctx, f)
	if !errors.Is(err, fault.ErrNotRunning) {
		return err
	}
	box, err := c.server.core.OpenStopped(ctx, c.id)
	if err != nil {
		return err
	}
	defer box.Release()
	return c.checkedOwner(f)(box)
}

// layers hands out the writes of a sandbox: one tree in each answer, followed by answers with the
// tree's lists.
func layers(ctx context.Context, to answers[protocol.LayersAnswer], _ *protocol.None) error {
	if err := to.peer.lists.Acquire(ctx, 1); err != nil {
		return err
	}
	defer to.peer.lists.Release(1)
	var trees []launcher.HeldTree
	err := to.withFiles(ctx, func(box Sandbox) (err error) {
		// Other peers than root have only the rights of the trees' owner.
		trees, err = box.Layers(ctx, !to.peer.all)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		for i := range trees {
			_ = trees[i].Close() // nothing was written to the trees
		}
	}()
	for i := range trees {
		if err := sendTree(ctx, to, &trees[i]); err != nil {
			return err
		}
		_ = trees[i].Close() // as above
	}
	to.answer(protocol.LayersAnswer{})
	return nil
}

// sendTree sends one tree with the descriptors of its layers, and then its lists.
func sendTree(ctx context.Context, to answers[protocol.LayersAnswer], t *launcher.HeldTree) error {
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
	if err := to.deliver(ctx, protocol.LayersAnswer{Tree: w}, files...); err != nil {
		return err
	}
	for i, listed := range w.Listed {
		if !listed {
			continue
		}
		err := sendList(ctx, to, func(w io.Writer) error { return t.WriteMarks(ctx, i, w) })
		if err != nil {
			return err
		}
	}
	if !w.Stamped {
		return nil
	}
	return sendList(ctx, to, t.WriteStamps)
}

// sendList sends a list in pieces.
func sendList(ctx context.Context, to answers[protocol.LayersAnswer], write func(io.Writer) error) error {
	p := &pieces{ctx, to}
	out := bufio.NewWriterSize(p, protocol.PieceSize)
	if err := write(out); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return to.deliver(ctx, protocol.LayersAnswer{Piece: &protocol.Piece{Last: true}})
}

// pieces send the bytes that are written to them.
type pieces struct {
	ctx context.Context
	to  answers[protocol.LayersAnswer]
}

func (p *pieces) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		some := b[:min(len(b), protocol.PieceSize)]
		if err := p.to.deliver(p.ctx, protocol.LayersAnswer{Piece: &protocol.Piece{Bytes: some}}); err != nil {
			return n, err
		}
		n, b = n+len(some), b[len(some):]
	}
	return n, nil
}
