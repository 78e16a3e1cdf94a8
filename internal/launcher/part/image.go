package part

import (
	"context"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
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
