package sandboxtest

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// An overlay is a directory of the host that a fake has a copy of. Its changes are written
// as a layer of overlayfs would have them, for the code that reads real ones.
type overlay struct {
	// path is the directory's on the host, rel is relative to /, number is its place
	// among the overlays.
	path, rel string
	number    int
	// forked says that a sandbox has begun with a snapshot's files here.
	forked bool
	// since is the time of the copy.
	since  time.Time
	stat   unix.Stat_t
	stamps map[string]layer.Stamp
	// written is the content of the layer.
	written tree
}

func newOverlay(dir string, number int) (*overlay, error) {
	o := &overlay{path: dir, rel: strings.TrimPrefix(dir, "/"), number: number}
	return o, unix.Stat(dir, &o.stat)
}

// Layers has the changes of the overlays, as package sandbox asks for them.
func (i *instance) Layers(context.Context) ([]layer.Overlay, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ctx.Err() != nil {
		return nil, sandbox.ErrNotFound
	}
	var all []layer.Overlay
	for _, o := range i.layers {
		t, err := i.layer(o)
		if err != nil {
			for _, t := range all {
				err = errors.Join(err, t.Close())
			}
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// layer brings the layer of an overlay up to date. A file that has not changed since the
// last time stays the same file: stamps depend on this.
func (i *instance) layer(o *overlay) (layer.Overlay, error) {
	dir := i.dir + "/layer/" + strconv.Itoa(o.number)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return layer.Overlay{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return layer.Overlay{}, err
	}
	defer root.Close()
	now, err := readDir(i.top() + o.path)
	if err != nil {
		return layer.Overlay{}, err
	}
	host := i.host.subtree(o.rel)
	want, marks := layerOf(host, now)
	if err := o.update(root, want); err != nil {
		return layer.Overlay{}, err
	}
	top, err := os.Open(dir)
	if err != nil {
		return layer.Overlay{}, err
	}
	user := layer.Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	return layer.Overlay{
		OverlayHead: layer.OverlayHead{
			Path: o.path, Device: o.stat.Dev, Inode: o.stat.Ino, Since: o.since,
			Owner: layer.Owner{UID: o.stat.Uid, GID: o.stat.Gid}, User: user, Base: noBase,
		},
		Layers: []layer.Layer{{Dir: top, Marks: marks}}, Stamps: maps.Clone(o.stamps),
	}, nil
}

// noBase makes each id but the user's an unknown one.
const noBase = 1 << 40

// layerOf is the layer that leads from the host's tree to another one, with the marks of its
// directories. A whiteout is a character device.
func layerOf(host, now tree) (layered tree, marks map[string]layer.Mark) {
	layered, marks = tree{}, map[string]layer.Mark{}
	for _, name := range changed(host, now) {
		dir, _ := layer.Split(name)
		if dir != "" && !now[dir].mode.IsDir() {
			continue // a deleted or replaced directory stands for all below it
		}
		n, ok := now[name]
		if !ok {
			n = node{mode: fs.ModeDevice | fs.ModeCharDevice}
		}
		layered[name] = n
		for ; dir != ""; dir, _ = layer.Split(dir) {
			layered[dir] = now[dir]
		}
	}
	for name, n := range layered {
		if n.mode.IsDir() && host[name].mode.IsDir() {
			marks[name] = layer.Mark{Copied: true}
		}
	}
	return layered, marks
}

// update writes the differences to the layer.
func (o *overlay) update(root *os.Root, want tree) error {
	paths := changed(o.written, want)
	plain := maps.Clone(want)
	maps.DeleteFunc(plain, func(_ string, n node) bool { return n.mode&fs.ModeDevice != 0 })
	if err := plain.write(root, paths); err != nil {
		return err
	}
	for _, name := range paths {
		if n, ok := want[name]; ok && n.mode&fs.ModeDevice != 0 {
			if err := unix.Mknod(root.Name()+"/"+name, unix.S_IFCHR, 0); err != nil {
				return &fs.PathError{Op: "mknod", Path: name, Err: err}
			}
		}
	}
	o.written = want
	return nil
}

// Applied notes how an apply has left the host's tree.
func (i *instance) Applied(_ context.Context, dir string, stamps map[string]layer.Stamp) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.layers {
		if o.path == dir {
			if o.stamps == nil {
				o.stamps = map[string]layer.Stamp{}
			}
			maps.Copy(o.stamps, stamps)
			maps.DeleteFunc(o.stamps, func(_ string, s layer.Stamp) bool { return s == layer.Stamp{} }) // it is gone
		}
	}
	return nil
}

// Verify says whether the files are still there.
func (i *instance) Verify(context.Context, bool) error {
	if i.ctx.Err() != nil {
		return sandbox.ErrNotFound
	}
	return nil
}

// Untie does nothing: the fake copies a renamed directory.
func (i *instance) Untie(context.Context, protocol.Untie) error { return nil }

// Discard implements [sandbox.Snapshotter].
func (i *instance) Discard(context.Context) error {
	root, done, err := i.lockRoot()
	if err != nil {
		return err
	}
	defer done()
	if len(i.layers) == 0 {
		return &sandbox.ConfigError{Reason: "discard: the sandbox has no overlay"}
	}
	for _, o := range i.layers {
		if !o.forked {
			if err := i.copyHost(o); err != nil {
				return err
			}
			i.begun.removeBelow(o.rel)
			maps.Copy(i.begun, i.host.subtree(o.rel).movedTo(o.rel))
		}
		now, err := readDir(i.top() + o.path)
		if err != nil {
			return err
		}
		begun := i.begun.subtree(o.rel)
		paths := changed(now, begun)
		for n := range paths {
			paths[n] = layer.Join(o.rel, paths[n])
		}
		if err := i.begun.write(root, slices.Sorted(slices.Values(paths))); err != nil {
			return err
		}
	}
	i.joined = nil
	return nil
}
