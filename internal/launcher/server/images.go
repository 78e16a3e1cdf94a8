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

// errNoImages refuses a request about images.
var errNoImages = refused(`images; a rule with "images": "10g" allows 10 GiB of them (docs/launcher.md)`)

// allowImages refuses all requests about images if the rule does not allow images.
func allowImages[Q any](_ context.Context, c *call, _ *Q) error {
	if !c.peer.all && c.peer.Images == 0 {
		return errNoImages
	}
	return nil
}

// imageUser is the user of images. Root has no bound.
func (c *call) imageUser() images.User {
	return images.User{UID: c.peer.uid, MaxBytes: int64(c.peer.Images)}
}

func (c *call) keeper() *images.Keeper { return c.server.core.ImageKeeper() }

// pullImage keeps the user's layers from removals until the client ends the call.
func pullImage(ctx context.Context, to answers[[]string], layers *[]string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(to.server.draining, cancel)()
	end, lacks, err := to.keeper().Pull(ctx, to.imageUser(), *layers)
	if err != nil {
		return err
	}
	defer end()
	*layers = nil
	to.doneWithRequest()
	if err := to.deliver(ctx, lacks); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// layerTime bounds how long a client may take to hand in a layer.
const layerTime = 2 * time.Hour

func addImageLayer(ctx context.Context, c *call, l protocol.ImageLayer) (a protocol.None, err error) {
	if len(c.files) != 1 {
		return a, &fault.ConfigError{Reason: fmt.Sprintf("a layer with %d descriptors; one layer is added at a time", len(c.files))}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, layerTime, errors.New("the layer was not complete in time"))
	defer cancel()
	return a, c.building(ctx, l.MaxBytes, func(u images.User) error { return c.keeper().AddLayer(ctx, u, l.DiffID, c.files[0]) })
}

func addImage(ctx context.Context, c *call, add protocol.AddImage) (image spec.Image, err error) {
	err = c.building(ctx, add.MaxBytes, func(u images.User) (err error) {
		image, err = c.keeper().AddImage(ctx, u, add)
		return err
	})
	return image, err
}

func listImages(ctx context.Context, c *call, _ protocol.None) ([]spec.Image, error) {
	return c.keeper().List(ctx, c.peer.uid)
}

func inspectImage(ctx context.Context, c *call, name string) (protocol.WireImage, error) {
	image, err := c.keeper().Inspect(ctx, c.peer.uid, name)
	w := protocol.WireImage{Image: image, Config: image.Config}
	w.Image.Config = nil
	return w, err
}

func removeImage(ctx context.Context, c *call, name string) (spec.RemovedImages, error) {
	return c.keeper().Remove(ctx, c.peer.uid, name)
}

func pruneImages(ctx context.Context, c *call, _ protocol.None) (spec.RemovedImages, error) {
	return c.keeper().Prune(ctx, c.peer.uid)
}

func verifyImage(ctx context.Context, c *call, name string) (a protocol.None, err error) {
	return a, c.building(ctx, 0, func(u images.User) error { return c.keeper().Verify(ctx, u.UID, name) })
}

// building calls f when the user has a place for a child that reads an image. maxBytes bounds an uncompressed layer, if
// it is not zero.
func (c *call) building(ctx context.Context, maxBytes int64, f func(images.User) error) error {
	u := c.imageUser()
	if u.LayerBytes = maxBytes; maxBytes < 0 {
		return &fault.ConfigError{Reason: fmt.Sprintf("invalid bound of %d bytes for a layer: use a positive number", maxBytes)}
	}
	if err := c.peer.builds.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.peer.builds.Release(1)
	return f(u)
}
