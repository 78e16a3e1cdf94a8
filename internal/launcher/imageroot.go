package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An imageRoot is the image of a sandbox that is being made.
type imageRoot struct {
	// id and files are those of [images.Root].
	id, files string
	config    spec.ImageConfig
	tree      *os.File
}

func (i imageRoot) close() { descriptor.Close(i.tree) }

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

// useImage mounts the image of the request, and gives the request those settings of the image that it lacks. The
// caller must hold the sandbox's directory: its removal ends the use.
func (m *creation) useImage(ctx context.Context) error {
	if m.asked.Image == "" {
		return nil
	}
	used, err := m.launcher.images.Use(ctx, m.from.UID, m.asked.Image, part.ImageUse(m.launcher.Roots, m.id))
	if err != nil {
		return fault.Refusal(fmt.Errorf("image: %w", err))
	}
	m.image = imageRoot{tree: used.Tree, id: used.ID, files: used.Files}
	if m.image.config, err = spec.ReadImageConfig(used.Config); err != nil {
		return fault.Refusal(err)
	}
	m.asked = m.image.config.Below(m.asked)
	if m.asked.User, err = m.image.user(m.asked.User); err != nil {
		return fault.Refusal(err)
	}
	c, err := completed(m.asked, m.request.Config.Storage)
	if err != nil {
		return fault.Refusal(err)
	}
	m.request.Config = c
	return nil
}

// holdImage makes the use of the image outlive the host's boot, if the sandbox's files above the image do so.
func (m *creation) holdImage(ctx context.Context) error {
	c := m.request.Config
	if c.Image == "" || !c.Writable || c.Storage != spec.StorageDisk {
		return nil
	}
	return m.launcher.images.Hold(ctx, m.from.UID, m.image.id, part.ImageUse(m.launcher.Roots, m.id))
}

// openRoot is [rootfs.Open]. Before Linux 6.15 the kernel copies no part of a detached mount (open_tree(2)). Then the image
// is attached first, in the mount namespace of a thread.
func openRoot(c rootfs.Config) (*rootfs.Root, error) {
	root, err := rootfs.Open(c)
	if c.Image == nil || !errors.Is(err, unix.EINVAL) {
		return root, err
	}
	return openAttached(c)
}

func openAttached(c rootfs.Config) (root *rootfs.Root, err error) {
	thread, err := mountns.Start()
	if err != nil {
		return nil, err
	}
	defer thread.Stop()
	err = thread.Do(func() error {
		if err := os.MkdirAll(record.Stage, 0o700); err != nil {
			return err
		}
		if err := mountns.Attach(c.Image, record.Stage); err != nil {
			return err
		}
		if c.Image, err = os.Open(record.Stage); err != nil {
			return err
		}
		defer c.Image.Close()
		root, err = rootfs.Open(c)
		return err
	})
	return root, err
}

// user returns the ids of the user that the request asks for, else of the image's user. Nil: there is neither. Names
// are looked up in the files of the image, which may be hostile.
func (i imageRoot) user(asked *spec.User) (*spec.User, error) {
	lookup := i.config.UserIn
	switch {
	case asked == nil && i.config.User == "":
		return nil, nil
	case asked != nil && asked.Name == "":
		return asked, nil
	case asked != nil:
		lookup = asked.LookupIn
	}
	found, err := lookup(i.read)
	if errors.Is(err, spec.ErrNoName) {
		err = fmt.Errorf("%w of the image; use ids, as UID:GID", err)
	}
	return &found, err
}

// read returns the content of a small regular file of the image's /etc. A missing file is empty.
func (i imageRoot) read(name string) ([]byte, error) {
	name = "etc/" + name
	f, err := descriptor.OpenFile(int(i.tree.Fd()), name, descriptor.LinksInRoot, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("/%s of the image: %w; use ids, as UID:GID", name, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("/%s of the image is not a regular file; use ids, as UID:GID", name), err)
	}
	text, err := io.ReadAll(io.LimitReader(f, spec.MaxUserFile+1))
	if err == nil && len(text) > spec.MaxUserFile {
		err = fmt.Errorf("/%s of the image has more than %d bytes; use ids, as UID:GID", name, spec.MaxUserFile)
	}
	return text, err
}
