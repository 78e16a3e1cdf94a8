package protocol

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ImageRequest is the part of a request about images.
type ImageRequest struct {
	// Name is a full name, an id, or the beginning of an id: of an inspect, a remove and a verify.
	Name string `json:"name,omitempty"`
	// Layers are the digests of uncompressed layers: all of the image for a pull, and one for an add of a
	// layer, whose content comes in a file beside the request.
	Layers []string `json:"layers,omitempty"`
	// Add is the image to add.
	Add *AddImage `json:"add,omitempty"`
	// MaxBytes bounds an uncompressed layer, of an add of a layer or an image; zero: the launcher's bounds.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// AddImage is an image whose layers the user has.
type AddImage struct {
	// Reference is the full name, or empty.
	Reference string `json:"reference,omitempty"`
	// Digest is that of the manifest, or empty.
	Digest string `json:"digest,omitempty"`
	// Config is the config as the image has it. Its digest becomes the id.
	Config []byte `json:"config"`
}

// MaxImageConfig bounds the config of an image, in bytes. In a request it takes four thirds of its bytes.
const MaxImageConfig = MaxRequest/4*3 - 16<<10

// ImagePull is a pull that is under way. As long as it is open, no removal takes a layer that no image of the
// user needs yet.
type ImagePull struct {
	// Lacks are the layers that the user has to add.
	Lacks   []string
	channel *channel.Conn
}

// PullImage begins a pull of an image with these layers. The caller must close the pull.
//
// Errors: ErrRefused, *ConfigError.
func (c *Client) PullImage(ctx context.Context, layers []string) (*ImagePull, error) {
	ch, err := c.open(ctx, &Request{Op: OpImagePull, Image: &ImageRequest{Layers: layers}}, nil, 0)
	if err != nil {
		return nil, err
	}
	a, _, err := c.receive(ctx, ch)
	if err != nil {
		ch.Close()
		return nil, err
	}
	if a.Lacks == nil {
		ch.Close()
		return nil, errAnswer
	}
	return &ImagePull{Lacks: slices.Clone(*a.Lacks), channel: ch}, nil
}

// Close ends the pull. It is safe to call twice.
func (p *ImagePull) Close() error { return p.channel.Close() }

// AddImageLayer adds a layer, from a pipe or a regular file with the layer as a tar archive, also compressed.
// The end of ctx leaves nothing behind. maxBytes is ImageRequest.MaxBytes.
//
// Errors: ErrRefused, *ConfigError for another content.
func (c *Client) AddImageLayer(ctx context.Context, diffID string, content *os.File, maxBytes int64) error {
	return c.callEmpty(ctx, &Request{Op: OpImageLayer, Image: &ImageRequest{Layers: []string{diffID}, MaxBytes: maxBytes}}, content)
}

// AddImage adds an image whose layers the user has. maxBytes is ImageRequest.MaxBytes.
//
// Errors: ErrRefused, *ConfigError.
func (c *Client) AddImage(ctx context.Context, add AddImage, maxBytes int64) (spec.Image, error) {
	if len(add.Config) > MaxImageConfig {
		return spec.Image{}, &fault.ConfigError{Reason: fmt.Sprintf("the image's config has %d bytes; at most %d are supported", len(add.Config), MaxImageConfig)}
	}
	return callFor(ctx, c, &Request{Op: OpImageAdd, Image: &ImageRequest{Add: &add, MaxBytes: maxBytes}}, func(a *Answer) *spec.Image { return a.Image })
}

// Images are the images of the user, the last created first, without layers and configs.
func (c *Client) Images(ctx context.Context) ([]spec.Image, error) {
	return callFor(ctx, c, &Request{Op: OpImages}, func(a *Answer) *[]spec.Image { return &a.Images })
}

// Image describes an image. Errors: ErrNotFound.
func (c *Client) Image(ctx context.Context, name string) (spec.Image, error) {
	a, err := c.call(ctx, imageRequest(OpImage, name))
	if err != nil {
		return spec.Image{}, err
	}
	image, err := valueOf(a.Image)
	image.Config = a.ImageConfig
	return image, err
}

// RemoveImage removes a name of an image, and the image with its last name.
//
// Errors: ErrNotFound, ErrBusy if a sandbox or a snapshot uses the image.
func (c *Client) RemoveImage(ctx context.Context, name string) (spec.RemovedImages, error) {
	return callFor(ctx, c, imageRequest(OpImageRemove, name), func(a *Answer) *spec.RemovedImages { return a.RemovedImages })
}

// PruneImages removes the images without a name that nothing uses, and layers that no image needs.
func (c *Client) PruneImages(ctx context.Context) (spec.RemovedImages, error) {
	return callFor(ctx, c, &Request{Op: OpImagePrune}, func(a *Answer) *spec.RemovedImages { return a.RemovedImages })
}

// VerifyImage reads all of an image. Errors: ErrNotFound, ErrDamaged.
func (c *Client) VerifyImage(ctx context.Context, name string) error {
	return c.callEmpty(ctx, imageRequest(OpImageVerify, name))
}

func imageRequest(op Op, name string) *Request {
	return &Request{Op: op, Image: &ImageRequest{Name: name}}
}
