package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/pool"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The store of images does not note that a blank uses an image: a removal of the image need not wait for blanks,
// and a killed launcher leaves no note. The mount keeps the files until the blank ends. The request that claims
// the blank has noted its use of the same image before, and so it has the right to the image.

// openImage mounts the image of a template for a blank. Without an image it does nothing. The caller must close the
// image, also after an error.
func (p *blanks) openImage(ctx context.Context, t template) (i part.ImageRoot, err error) {
	if t.Config.Image == "" {
		return i, nil
	}
	opened, err := p.launcher.images.Open(ctx, t.UID, t.Config.Image)
	if err != nil {
		return i, err
	}
	i = part.ImageRoot{Tree: opened.Tree, ID: opened.ID, Files: opened.Files}
	if i.Files != t.ImageFiles {
		return i, fmt.Errorf("image %s %w", t.Config.Image, images.ErrPulledAgain)
	}
	i.Config, err = spec.ReadImageConfig(opened.Config)
	return i, err
}

// unwanted returns [pool.ErrUnwanted] for an image that its user has removed, perhaps to pull it again.
func unwanted(err error) error {
	if errors.Is(err, fault.ErrNotFound) || errors.Is(err, images.ErrPulledAgain) {
		return pool.ErrUnwanted
	}
	return err
}

// checkImage returns an error if no request can claim the blank because the owner has lost its image.
func (b *blank) checkImage(ctx context.Context) error {
	if b.imageFiles == "" {
		return nil
	}
	return b.launcher.images.Check(ctx, b.From.UID, b.Request.Config.Image, b.imageFiles)
}

// dropImages ends the blanks of those images that a user has no more.
func (p *blanks) dropImages(ctx context.Context, uid uint32) {
	for _, kind := range p.Kinds() {
		var t template
		if err := json.Unmarshal([]byte(kind), &t); err != nil {
			p.failed(err)
			continue
		}
		if t.UID == uid && t.Config.Image != "" && p.launcher.images.Check(ctx, uid, t.Config.Image, t.ImageFiles) != nil {
			p.Drop(kind)
		}
	}
}
