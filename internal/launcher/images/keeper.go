// Package images keeps the images of a launcher's users: it composes the image store (images/store) for
// internal/launcher, finds images by the names that users type, and bounds the images of each user.
//
// The package does not know registries: clients read images with their own rights (images/source).
package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sync/semaphore"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
	"github.com/sandbox-runtime/sandbox-runtime/images/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	_ "github.com/sandbox-runtime/sandbox-runtime/internal/launcher/takeover" // the processes that this package starts
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Keeper has the images in one directory. Several goroutines and processes may use the directory.
type Keeper struct {
	dir string
	// opening is held by the call that opens the store, and guards store. A context can interrupt the wait. The store is
	// opened again after a removal or an exchange of its directory, such as by a restored backup.
	opening *semaphore.Weighted
	store   *store.Store
	mounts  mounts
	// Removed is called after images of a user can have been removed. It can be nil.
	Removed func(ctx context.Context, uid uint32)
}

// New returns the keeper of a directory. The first call of a method makes the directory.
func New(dir string) *Keeper { return &Keeper{dir: dir, opening: semaphore.NewWeighted(1)} }

// Close gives up the mounts of images. No other call may be under way.
func (k *Keeper) Close() { k.mounts.drop() }

// A User is a user of images.
type User struct {
	UID uint32
	// MaxBytes bounds the layers and images of the user; zero: no bound. The user can exceed the bound by
	// the index of one image. The caller must not add twice at a time for a user with a bound.
	MaxBytes int64
	// LayerBytes bounds each layer of a request, uncompressed; zero: a layer of a user without MaxBytes leaves a tenth of
	// the free space.
	LayerBytes int64
}

// The other bounds of a user with MaxBytes. The store reads all images and layers of a user while it holds a
// lock that all users share.
const (
	maxImages     = 1000
	maxReferences = 1000
	maxLayers     = 5000
)

func (k *Keeper) open(ctx context.Context) (*store.Store, error) {
	if err := k.opening.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer k.opening.Release(1)
	if k.store == nil || !k.store.IsInPlace() {
		s, err := store.Open(ctx, k.dir)
		if err != nil {
			return nil, conditionError(err)
		}
		k.store = s
	}
	return k.store, nil
}

// withUser calls f with the images of a user. The error has the conditions that clients decide on.
func (k *Keeper) withUser(ctx context.Context, uid uint32, f func(store.User) error) error {
	s, err := k.open(ctx)
	if err != nil {
		return err
	}
	return conditionError(f(s.For(uid)))
}

// Pull begins a pull of an image with these layers, and returns the layers that the user has to add. Until end is
// called, no removal takes a layer of the user.
func (k *Keeper) Pull(ctx context.Context, u User, layers []string) (end func(), lacks []string, err error) {
	digests, err := parseDigests(layers)
	if err != nil {
		return nil, nil, err
	}
	err = k.withUser(ctx, u.UID, func(user store.User) error {
		p, err := user.Pull(ctx)
		if err != nil {
			return err
		}
		missing, err := p.Lacks(ctx, digests)
		if err != nil {
			p.Close()
			return err
		}
		end, lacks = p.Close, digestTexts(missing)
		return nil
	})
	return end, lacks, err
}

// digestTexts are the digests as JSON has them. Without digests the list is empty, and not null.
func digestTexts(digests []store.Digest) []string {
	texts := []string{}
	for _, d := range digests {
		texts = append(texts, string(d))
	}
	return texts
}

func parseDigests(texts []string) ([]store.Digest, error) {
	if most := store.DefaultLimits().Index.Layers; len(texts) > most {
		return nil, &fault.ConfigError{Reason: fmt.Sprintf("the image has %d layers; %d are supported", len(texts), most)}
	}
	var all []store.Digest
	for _, text := range texts {
		d, err := store.ParseDigest(text)
		if err != nil {
			return nil, fault.Refusal(err)
		}
		all = append(all, d)
	}
	return all, nil
}

// AddLayer adds a layer for the user, from a pipe or a regular file.
func (k *Keeper) AddLayer(ctx context.Context, u User, diffID string, content *os.File) error {
	digest, err := store.ParseDigest(diffID)
	if err != nil {
		return fault.Refusal(err)
	}
	p, _, wayOut, err := k.pullWithin(ctx, u)
	if err != nil {
		return err
	}
	defer p.Close()
	err = conditionError(p.AddLayer(ctx, digest, content))
	if errors.As(err, new(*inflate.TooLargeError)) || errors.As(err, new(*inflate.NoRoomError)) {
		err = fmt.Errorf("%w; %s", err, wayOut)
	}
	return err
}

// pullWithin begins a pull within the bounds of the user. It also returns the limits of the pull, and the way out of a
// refusal.
func (k *Keeper) pullWithin(ctx context.Context, u User) (p *store.Pull, limits store.Limits, wayOut string, err error) {
	s, err := k.open(ctx)
	if err != nil {
		return nil, limits, "", err
	}
	left, err := freeRoom(ctx, s, u)
	if err != nil {
		return nil, limits, "", err
	}
	limits, wayOut = u.limits(left)
	p, err = s.Within(limits).For(u.UID).Pull(ctx)
	return p, limits, wayOut, conditionError(err)
}

// limits returns the limits of an addition, and the way out of a refusal. The user may still add some bytes.
func (u User) limits(left int64) (limits store.Limits, wayOut string) {
	limits = store.DefaultLimits()
	wayOut = "no layer can have more"
	if u.LayerBytes != 0 {
		limits.Index.Copied = min(limits.Index.Copied, u.LayerBytes)
		if u.LayerBytes < limits.LayerBytes {
			limits.LayerBytes, wayOut = u.LayerBytes, "allow more with --max-bytes"
		}
	}
	switch {
	case u.MaxBytes != 0:
		// A small archive can have large sparse files, which are copied into the index.
		limits.Index.Copied = min(limits.Index.Copied, left)
		if left < limits.LayerBytes {
			limits.LayerBytes = left
			wayOut = fmt.Sprintf("your images may have %v, and have %v: remove images", spec.Size(u.MaxBytes), spec.Size(u.MaxBytes-left))
		}
	case u.LayerBytes == 0:
		limits.Spare, wayOut = true, "remove images, make room, or allow more with --max-bytes"
	}
	return limits, wayOut
}

// freeRoom is the number of bytes that the user may still add. It is not known for a user without a bound.
func freeRoom(ctx context.Context, s *store.Store, u User) (int64, error) {
	if u.MaxBytes == 0 {
		return 0, nil
	}
	use, err := s.For(u.UID).Usage(ctx)
	if err != nil {
		return 0, conditionError(err)
	}
	full := func(format string, args ...any) (int64, error) {
		return 0, fmt.Errorf("%w: your images have %s; remove images, and then prune", fault.ErrRefused, fmt.Sprintf(format, args...))
	}
	switch {
	case use.Bytes >= u.MaxBytes:
		return full("%v, and may have %v", spec.Size(use.Bytes), spec.Size(u.MaxBytes))
	case use.Images >= maxImages || use.References >= maxReferences:
		return full("%d ids and %d names, and may have %d and %d", use.Images, use.References, maxImages, maxReferences)
	case use.Layers >= maxLayers:
		return full("%d layers, and may have %d", use.Layers, maxLayers)
	}
	return u.MaxBytes - use.Bytes, nil
}

// AddImage adds an image whose layers the user has.
func (k *Keeper) AddImage(ctx context.Context, u User, add protocol.AddImage) (spec.Image, error) {
	p, limits, wayOut, err := k.pullWithin(ctx, u)
	if err != nil {
		return spec.Image{}, err
	}
	defer p.Close()
	image, err := p.AddImage(ctx, store.NewImage{Reference: add.Reference, Digest: store.Digest(add.Digest), Config: add.Config})
	if err != nil && limits.Index.Copied < store.DefaultLimits().Index.Copied && strings.Contains(err.Error(), index.CopiedLimit) { // the child tells a text
		return spec.Image{}, fmt.Errorf("%w; %s", conditionError(err), wayOut)
	}
	if err != nil {
		return spec.Image{}, conditionError(err)
	}
	return described(image), nil
}

// List returns the images of the user, the last created first, without layers and configs.
func (k *Keeper) List(ctx context.Context, uid uint32) ([]spec.Image, error) {
	all := []spec.Image{}
	err := k.withUser(ctx, uid, func(u store.User) error {
		images, err := u.Images(ctx)
		for _, i := range images {
			i.Layers = nil
			all = append(all, described(i))
		}
		return err
	})
	return all, err
}

// Inspect describes an image of the user, with its config.
func (k *Keeper) Inspect(ctx context.Context, uid uint32, name string) (image spec.Image, err error) {
	err = k.withNamed(ctx, uid, name, func(u store.User, name string) error {
		found, config, err := u.Inspect(ctx, name)
		image = described(found)
		image.Config = config
		return err
	})
	return image, err
}

// Remove removes a name of an image of the user, and the image with its last name.
func (k *Keeper) Remove(ctx context.Context, uid uint32, name string) (removed spec.RemovedImages, err error) {
	err = k.withNamed(ctx, uid, name, func(u store.User, name string) error {
		done, err := u.Remove(ctx, name)
		removed = removedImages(done)
		return err
	})
	k.tellRemoved(ctx, uid, removed)
	return removed, err
}

func (k *Keeper) tellRemoved(ctx context.Context, uid uint32, removed spec.RemovedImages) {
	if k.Removed != nil && len(removed.Deleted) > 0 {
		k.Removed(ctx, uid)
	}
}

// Prune removes the images of the user that have no name and that nothing uses, and layers that no image needs.
func (k *Keeper) Prune(ctx context.Context, uid uint32) (removed spec.RemovedImages, err error) {
	err = k.withUser(ctx, uid, func(u store.User) error {
		done, err := u.Prune(ctx)
		removed = removedImages(done)
		return err
	})
	k.tellRemoved(ctx, uid, removed)
	return removed, err
}

// Verify reads all of an image of the user.
func (k *Keeper) Verify(ctx context.Context, uid uint32, name string) error {
	return k.withNamed(ctx, uid, name, func(u store.User, name string) error { return u.Verify(ctx, name) })
}

func described(i store.Image) spec.Image {
	image := spec.Image{
		ID: string(i.ID), References: []spec.ImageReference{}, Created: i.Created, Size: i.Size, Layers: digestTexts(i.Layers), Damaged: i.Damaged,
	}
	for _, r := range i.References {
		image.References = append(image.References, spec.ImageReference{Name: r.Name, Digest: string(r.Digest)})
	}
	return image
}

func removedImages(r store.Removed) spec.RemovedImages {
	return spec.RemovedImages{
		Untagged: append([]string{}, r.Untagged...), Deleted: digestTexts(r.Images), DeletedLayers: digestTexts(r.Layers), Bytes: r.Bytes,
	}
}

// conditionError gives an error of the store the conditions that clients decide on.
func conditionError(err error) error {
	var inUse *store.InUseError
	var damaged *store.DamagedError
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fault.Worded(err.Error(), []error{fault.ErrNotFound, err})
	case errors.As(err, &inUse):
		inUse.Users = shownUses(inUse.Users)
		return fault.Worded(err.Error(), []error{fault.ErrBusy, err})
	case errors.As(err, &damaged):
		return fault.Worded(err.Error(), []error{fault.ErrDamaged, err})
	}
	return err
}
