package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// An imageOperation carries out a request about the images of a user. Its answer is nil if it has sent all answers
// itself.
type imageOperation func(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error)

var imageOperations = map[protocol.Op]imageOperation{
	protocol.OpImagePull:   pullImage,
	protocol.OpImageLayer:  addImageLayer,
	protocol.OpImageAdd:    addImage,
	protocol.OpImages:      listImages,
	protocol.OpImage:       inspectImage,
	protocol.OpImageRemove: removeImage,
	protocol.OpImagePrune:  pruneImages,
	protocol.OpImageVerify: verifyImage,
}

// errNoImages refuses a request about images.
var errNoImages = refused(`images; a rule with "images": "10g" allows 10 GiB of them (docs/launcher.md)`)

// images carries out a request about images if the rule allows images.
func (c *call) images(ctx context.Context, f imageOperation) (*protocol.Answer, error) {
	u := images.User{UID: c.peer.uid}
	if !c.peer.all {
		if c.peer.Images == 0 {
			return nil, errNoImages
		}
		u.MaxBytes = int64(c.peer.Images)
	}
	r := c.request.Image
	if r == nil {
		r = &protocol.ImageRequest{}
	}
	if r.MaxBytes < 0 {
		return nil, &fault.ConfigError{Reason: fmt.Sprintf("invalid bound of %d bytes for a layer: use a positive number", r.MaxBytes)}
	}
	u.LayerBytes = r.MaxBytes
	return f(ctx, c, u, r)
}

func (c *call) keeper() *images.Keeper { return c.server.core.ImageKeeper() }

// pullImage keeps the user's layers from removals until the client ends the call.
func pullImage(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.server.draining, cancel)()
	end, lacks, err := c.keeper().Pull(ctx, u, r.Layers)
	if err != nil {
		return nil, err
	}
	defer end()
	c.doneWithRequest()
	if err := c.deliver(ctx, &protocol.Answer{Lacks: &lacks}); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, nil
}

// layerTime bounds how long a client may take to hand in a layer.
const layerTime = 2 * time.Hour

func addImageLayer(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error) {
	if len(r.Layers) != 1 || len(c.files) != 1 {
		return nil, &fault.ConfigError{Reason: fmt.Sprintf("%d layers with %d descriptors; one of each is added at a time", len(r.Layers), len(c.files))}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, layerTime, errors.New("the layer was not complete in time"))
	defer cancel()
	return &protocol.Answer{}, c.building(ctx, func() error {
		return c.keeper().AddLayer(ctx, u, r.Layers[0], c.files[0])
	})
}

func addImage(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error) {
	if r.Add == nil {
		return nil, &fault.ConfigError{Reason: "no image to add"}
	}
	var image spec.Image
	err := c.building(ctx, func() (err error) {
		image, err = c.keeper().AddImage(ctx, u, *r.Add)
		return err
	})
	return &protocol.Answer{Image: &image}, err
}

func listImages(ctx context.Context, c *call, u images.User, _ *protocol.ImageRequest) (*protocol.Answer, error) {
	return nil, c.answerFrom(ctx, func() (*protocol.Answer, error) {
		all, err := c.keeper().List(ctx, u.UID)
		return &protocol.Answer{Images: all}, err
	})
}

func inspectImage(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error) {
	return nil, c.answerFrom(ctx, func() (*protocol.Answer, error) {
		image, err := c.keeper().Inspect(ctx, u.UID, r.Name)
		config := []byte(image.Config) // JSON in JSON would lose its spaces, and the digest is of all bytes
		image.Config = nil
		return &protocol.Answer{Image: &image, ImageConfig: config}, err
	})
}

func removeImage(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error) {
	removed, err := c.keeper().Remove(ctx, u.UID, r.Name)
	return &protocol.Answer{RemovedImages: &removed}, err
}

func pruneImages(ctx context.Context, c *call, u images.User, _ *protocol.ImageRequest) (*protocol.Answer, error) {
	removed, err := c.keeper().Prune(ctx, u.UID)
	return &protocol.Answer{RemovedImages: &removed}, err
}

func verifyImage(ctx context.Context, c *call, u images.User, r *protocol.ImageRequest) (*protocol.Answer, error) {
	return &protocol.Answer{}, c.building(ctx, func() error { return c.keeper().Verify(ctx, u.UID, r.Name) })
}

// building calls f when the user has a place for a child that reads an image.
func (c *call) building(ctx context.Context, f func() error) error {
	if err := c.peer.builds.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.peer.builds.Release(1)
	return f()
}
