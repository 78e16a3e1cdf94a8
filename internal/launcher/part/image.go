package part

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// imageUses are the uses of the images that are the roots of sandboxes. The store of images keeps them.
type imageUses struct{ *Parts }

func (imageUses) find() ([]string, error) { return nil, nil }

func (i imageUses) release(ctx context.Context, r *Remains) error {
	if r.Record != nil && r.Record.Config.Image == "" { // without a record the sandbox may use one
		return nil
	}
	return i.Images.Release(ctx, ImageUse(i.Roots, r.ID))
}

// ReleaseImage ends the use of the sandbox's image. [Parts.Release] repeats this.
func (p *Parts) ReleaseImage(ctx context.Context, r *Remains) error {
	return imageUses{p}.release(ctx, r)
}

// ImageUse names a sandbox in the store of images, which several state roots can share.
func ImageUse(roots record.Roots, id string) string {
	return images.SandboxUse(id, strings.TrimSuffix(roots.CgroupPrefix(), "-"))
}

// An ImageRoot is the image of a sandbox that is being made.
type ImageRoot struct {
	// ID and Files are those of [images.Root].
	ID, Files string
	Tree      *os.File
	Config    spec.ImageConfig
}

// Close closes the files of the image.
func (i ImageRoot) Close() { descriptor.Close(i.Tree) }

// UseImage mounts the image of the request, and gives the request those settings of the image that it lacks. The
// caller must hold the sandbox's directory: its removal ends the use.
func (m *Making) UseImage(ctx context.Context) error {
	if m.Asked.Image == "" {
		return nil
	}
	used, err := m.parts.Images.Use(ctx, m.From.UID, m.Asked.Image, ImageUse(m.parts.Roots, m.ID))
	if err != nil {
		return fault.Refusal(fmt.Errorf("image: %w", err))
	}
	m.Image = ImageRoot{ID: used.ID, Files: used.Files, Tree: used.Tree}
	if m.Image.Config, err = spec.ReadImageConfig(used.Config); err != nil {
		return fault.Refusal(err)
	}
	m.Asked = m.Image.Config.Below(m.Asked)
	if m.Asked.User, err = m.Image.user(m.Asked.User); err != nil {
		return fault.Refusal(err)
	}
	c, err := Completed(m.Asked, m.Request.Config.Storage)
	if err != nil {
		return fault.Refusal(err)
	}
	m.Request.Config = c
	return nil
}

// holdImage makes the use of the image outlive the host's boot, if the sandbox's files above the image do so.
func (m *Making) holdImage(ctx context.Context) error {
	c := m.Request.Config
	if c.Image == "" || !c.Writable || c.Storage != spec.StorageDisk {
		return nil
	}
	return m.parts.Images.Hold(ctx, m.From.UID, m.Image.ID, ImageUse(m.parts.Roots, m.ID))
}

// user returns the ids of the user that the request asks for, else of the image's user. Nil: there is neither. Names
// are looked up in the files of the image, which may be hostile.
func (i ImageRoot) user(asked *spec.User) (*spec.User, error) {
	lookup := i.Config.UserIn
	switch {
	case asked == nil && i.Config.User == "":
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
func (i ImageRoot) read(name string) ([]byte, error) {
	name = "etc/" + name
	f, err := descriptor.OpenFile(int(i.Tree.Fd()), name, descriptor.LinksInRoot, unix.O_RDONLY|unix.O_NONBLOCK)
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
