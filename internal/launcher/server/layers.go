package server

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
)

// withFiles calls f with the peer's sandbox, which may have stopped. Of a stopped
// sandbox no handle is kept.
func (c *call) withFiles(ctx context.Context, f func(Sandbox) error) error {
	err := c.server.handles.with(ctx, c.request.ID, c.own(f))
	if !errors.Is(err, launch.ErrNotRunning) {
		return err
	}
	box, err := c.server.core.OpenStopped(ctx, c.request.ID)
	if err != nil {
		return err
	}
	defer box.Release()
	return c.own(f)(box)
}

// layers hands out what a sandbox has written, a tree an answer.
func (c *call) layers(ctx context.Context) (*launch.Answer, error) {
	var trees []launch.Tree
	err := c.withFiles(ctx, func(box Sandbox) (err error) {
		// Others have no more than the rights of the trees' owner.
		trees, err = box.Layers(ctx, !c.peer.all)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, t := range trees {
			_ = t.Close() // they were only looked at
		}
	}()
	for _, t := range trees {
		if err := c.tree(t); err != nil {
			return nil, err
		}
	}
	return &launch.Answer{}, nil
}

// applied notes when files of a tree were written on the host.
func (c *call) applied(ctx context.Context) error {
	stamps := map[string]layer.Stamp{}
	for _, s := range c.request.Stamps {
		stamps[string(s.Path)] = s.Plain()
	}
	return c.withFiles(ctx, func(box Sandbox) error { return box.Applied(ctx, c.request.Tree, stamps) })
}

// tree sends one tree, with its layers beside it.
func (c *call) tree(t launch.Tree) error {
	w := &launch.WireTree{
		Path: t.Path, Device: t.Device, Inode: t.Inode, Since: t.Since, Owner: t.Owner, OnDisk: t.OnDisk, User: t.User, Base: t.Base,
		Stamped: t.Stamps != nil, Partial: t.Partial, Found: t.Host != nil,
	}
	var files, lists []*os.File
	defer func() { closeAll(lists) }()
	list := func(content []byte) error {
		f, err := memory(content)
		if err == nil {
			files, lists = append(files, f), append(lists, f)
		}
		return err
	}
	for _, l := range t.Layers {
		files = append(files, l.Dir)
		w.Listed = append(w.Listed, l.Marks != nil)
		if l.Marks == nil {
			continue
		}
		if err := list(launch.EncodeMarks(l.Marks)); err != nil {
			return err
		}
	}
	if w.Stamped {
		if err := list(launch.EncodeStamps(t.Stamps)); err != nil {
			return err
		}
	}
	if w.Found {
		files = append(files, t.Host)
	}
	if len(files) > launch.MaxFiles {
		return fmt.Errorf("%s has %d layers, more than can be handed out", t.Path, len(t.Layers))
	}
	c.answer(&launch.Answer{Tree: w}, files...)
	return nil
}

// memory is a file with some content that nothing but its descriptors keeps.
func memory(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("list", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "list")
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
