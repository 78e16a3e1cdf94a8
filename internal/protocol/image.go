package protocol

import (
	"context"
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An ImageLayer is a layer to add. Its content comes in a file beside the request.
type ImageLayer struct {
	// DiffID is the digest of the uncompressed layer.
	DiffID string `json:"diff_id"`
	// MaxBytes bounds the uncompressed layer; zero: the launcher's bounds.
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
	// MaxBytes bounds each uncompressed layer; zero: the launcher's bounds.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// A WireImage is an image on the wire. JSON in JSON would lose its spaces, and the digest of Config is of all bytes.
type WireImage struct {
	spec.Image
	Config []byte `json:"config_bytes,omitempty"`
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
	ch, err := OpImagePull.open(ctx, c, layers)
	if err != nil {
		return nil, err
	}
	lacks, _, err := OpImagePull.receive(ctx, c, ch)
	if err != nil {
		ch.Close()
		return nil, err
	}
	return &ImagePull{Lacks: lacks, channel: ch}, nil
}

// Close ends the pull. It is safe to call twice.
func (p *ImagePull) Close() error { return p.channel.Close() }

// AddImageLayer adds a layer, from a pipe or a regular file with the layer as a tar archive, also compressed.
// The end of ctx leaves nothing behind. maxBytes is ImageLayer.MaxBytes.
//
// Errors: ErrRefused, *ConfigError for another content.
func (c *Client) AddImageLayer(ctx context.Context, diffID string, content *os.File, maxBytes int64) error {
	_, err := Ask(ctx, c, OpImageLayer, ImageLayer{diffID, maxBytes}, content)
	return err
}

// AddImage adds an image whose layers the user has. maxBytes is AddImage.MaxBytes.
//
// Errors: ErrRefused, *ConfigError.
func (c *Client) AddImage(ctx context.Context, add AddImage, maxBytes int64) (spec.Image, error) {
	if len(add.Config) > MaxImageConfig {
		return spec.Image{}, &fault.ConfigError{Reason: fmt.Sprintf("the image's config has %d bytes; at most %d are supported", len(add.Config), MaxImageConfig)}
	}
	add.MaxBytes = maxBytes
	return Ask(ctx, c, OpImageAdd, add)
}

// Image describes an image. Errors: ErrNotFound.
func (c *Client) Image(ctx context.Context, name string) (spec.Image, error) {
	a, err := Ask(ctx, c, OpImage, name)
	a.Image.Config = a.Config
	return a.Image, err
}
