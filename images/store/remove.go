package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Removed tells the effect of a removal or a prune for the user. The bytes stay on disk as long as another
// user has a right to them, and the result does not tell that.
type Removed struct {
	Untagged []string // names
	Images   []Digest
	Layers   []Digest
	Bytes    int64 // the size of the layers
}

// Remove removes a name of an image, and with the last name the image. With an id, or the beginning of an
// id, it removes an image that has at most one name. It refuses an image in use.
func (u User) Remove(ctx context.Context, name string) (Removed, error) {
	removed, err := u.change(ctx, func(r *removal) error { return r.removeLocked(name) })
	return removed, during("remove image "+clip(name), err)
}

// Prune removes the images of the user that have no name and no use, and the layers that no image needs. It
// leaves these layers if a pull of the user runs.
func (u User) Prune(ctx context.Context) (Removed, error) {
	removed, err := u.change(ctx, (*removal).pruneLocked)
	return removed, during("prune images", err)
}

// change removes rights of the user, and then the content that no user has a right to.
func (u User) change(ctx context.Context, f func(*removal) error) (Removed, error) {
	s := u.store
	unlock, err := s.lock(ctx)
	if err != nil {
		return Removed{}, err
	}
	r, left := removal{user: u}, rest{}
	err = errors.Join(s.repairLocked(u), f(&r), s.dropOrphansLocked(&left))
	unlock()
	return r.done, errors.Join(err, left.erase())
}

// A removal takes rights from a user.
type removal struct {
	user User
	done Removed // the effect until now
}

func (r *removal) removeLocked(name string) error {
	image, err := r.user.findLocked(name)
	if err != nil {
		return err
	}
	if len(image.References) > 1 && slices.ContainsFunc(image.References, named(name)) {
		r.done.Untagged = []string{name}
		return os.Remove(r.user.referencePath(name))
	}
	var names []string
	for _, reference := range image.References {
		names = append(names, reference.Name)
	}
	if len(names) > 1 {
		return fmt.Errorf("image %s has several names: %s; remove the names", image.ID, strings.Join(names, ", "))
	}
	users, err := r.user.uses().byLocked(image.ID)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return &InUseError{image.ID, users}
	}
	r.done.Untagged = names
	return r.dropLocked(image.ID)
}

func (r *removal) pruneLocked() error {
	images, err := digestsLocked(r.user.path("images"))
	if err != nil {
		return err
	}
	keep, err := r.neededImagesLocked()
	if err != nil {
		return err
	}
	for _, id := range images {
		if !keep[id] {
			if err := r.dropLocked(id); err != nil {
				return err
			}
		}
	}
	own, err := digestsLocked(r.user.path("layers"))
	if err != nil {
		return err
	}
	return r.dropLayersLocked(own)
}

// neededImagesLocked are the images with a name or a use.
func (r *removal) neededImagesLocked() (map[Digest]bool, error) {
	references, err := r.user.referencesLocked()
	if err != nil {
		return nil, err
	}
	uses, err := r.user.uses().allLocked()
	needed := map[Digest]bool{}
	for _, reference := range references {
		needed[reference.Image] = true
	}
	for _, use := range uses {
		needed[use.Image] = true
	}
	return needed, err
}

// dropLocked removes an image of the user. The rename is the decision: a process that is killed later leaves
// the rest to [Store.repairLocked].
func (r *removal) dropLocked(id Digest) error {
	if err := os.Rename(r.user.path("images", id.hex()), r.user.path("removing", id.hex())); err != nil {
		return err
	}
	r.done.Images = append(r.done.Images, id)
	return r.finishLocked(id)
}

// finishLocked takes the names and layers of an image from the user.
func (r *removal) finishLocked(id Digest) error {
	references, err := r.user.referencesLocked()
	if err != nil {
		return err
	}
	for _, reference := range references {
		if reference.Image == id {
			if err := os.Remove(r.user.referencePath(reference.Name)); err != nil {
				return err
			}
		}
	}
	layers, err := r.user.store.readLayers(id)
	if err == nil {
		err = r.dropLayersLocked(layers)
	}
	// Damage must not keep an image for ever. A prune takes the layers after the removal of all damaged images.
	if err != nil && !errors.As(err, new(*DamagedError)) {
		return err
	}
	return os.Remove(r.user.path("removing", id.hex()))
}

// dropLayersLocked takes from the user those of the layers that no image of the user needs.
func (r *removal) dropLayersLocked(layers []Digest) error {
	images, err := digestsLocked(r.user.path("images"))
	if err != nil {
		return err
	}
	needed := map[Digest]bool{}
	for _, id := range images {
		own, err := r.user.store.readLayers(id)
		if err != nil {
			return fmt.Errorf("%w, or remove the image", err)
		}
		for _, l := range own {
			needed[l] = true
		}
	}
	if pulls, err := r.user.hasPullLocked(); pulls || err != nil {
		return err
	}
	for _, l := range layers {
		if needed[l] {
			continue
		}
		err := os.Remove(r.user.path("layers", l.hex()))
		if errors.Is(err, unix.ENOENT) {
			continue // the image has the layer twice
		}
		if err != nil {
			return err
		}
		needed[l] = true // done names the layer once
		r.done.Layers = append(r.done.Layers, l)
		if info, err := os.Stat(r.user.store.path("layers", l.hex(), tarName)); err == nil {
			r.done.Bytes += info.Size()
		}
	}
	return nil
}
