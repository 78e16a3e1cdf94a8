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
	removed, err := u.change(ctx, func(done *Removed) error { return u.removeLocked(name, done) })
	return removed, during("remove image "+clip(name), err)
}

// Prune removes the images of the user that have no name and no use, and the layers that no image needs. It
// leaves these layers if a pull of the user runs.
func (u User) Prune(ctx context.Context) (Removed, error) {
	removed, err := u.change(ctx, u.pruneLocked)
	return removed, during("prune images", err)
}

// change removes rights of the user, and then the content that no user has a right to.
func (u User) change(ctx context.Context, f func(*Removed) error) (done Removed, err error) {
	s := u.store
	unlock, err := s.lock(ctx)
	if err != nil {
		return done, err
	}
	var r rest
	err = errors.Join(s.repairLocked(u), f(&done), s.dropOrphansLocked(&r))
	unlock()
	return done, errors.Join(err, r.erase())
}

func (u User) removeLocked(name string, done *Removed) error {
	image, err := u.findLocked(name)
	if err != nil {
		return err
	}
	if len(image.References) > 1 && slices.ContainsFunc(image.References, named(name)) {
		done.Untagged = []string{name}
		return os.Remove(u.referencePath(name))
	}
	var names []string
	for _, r := range image.References {
		names = append(names, r.Name)
	}
	if len(names) > 1 {
		return fmt.Errorf("image %s has several names: %s; remove the names", image.ID, strings.Join(names, ", "))
	}
	users, err := u.usersOfLocked(image.ID)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return &InUseError{image.ID, users}
	}
	done.Untagged = names
	return u.dropLocked(image.ID, done)
}

func (u User) pruneLocked(done *Removed) error {
	images, err := digestsLocked(u.path("images"))
	if err != nil {
		return err
	}
	keep, err := u.neededImagesLocked()
	if err != nil {
		return err
	}
	for _, id := range images {
		if !keep[id] {
			if err := u.dropLocked(id, done); err != nil {
				return err
			}
		}
	}
	own, err := digestsLocked(u.path("layers"))
	if err != nil {
		return err
	}
	return u.dropLayersLocked(own, done)
}

// neededImagesLocked are the images with a name or a use.
func (u User) neededImagesLocked() (map[Digest]bool, error) {
	references, err := u.referencesLocked()
	if err != nil {
		return nil, err
	}
	uses, err := u.usesLocked()
	needed := map[Digest]bool{}
	for _, r := range references {
		needed[r.Image] = true
	}
	for _, use := range uses {
		needed[use.Image] = true
	}
	return needed, err
}

// dropLocked removes an image of the user. The rename is the decision: a process that is killed later leaves
// the rest to [Store.repairLocked].
func (u User) dropLocked(id Digest, done *Removed) error {
	if err := os.Rename(u.path("images", id.hex()), u.path("removing", id.hex())); err != nil {
		return err
	}
	done.Images = append(done.Images, id)
	return u.finishLocked(id, done)
}

// finishLocked takes the names and layers of an image from the user.
func (u User) finishLocked(id Digest, done *Removed) error {
	references, err := u.referencesLocked()
	if err != nil {
		return err
	}
	for _, r := range references {
		if r.Image == id {
			if err := os.Remove(u.referencePath(r.Name)); err != nil {
				return err
			}
		}
	}
	layers, err := u.store.readLayers(id)
	if err == nil {
		err = u.dropLayersLocked(layers, done)
	}
	// Damage must not keep an image for ever. A prune takes the layers after the removal of all damaged images.
	if err != nil && !errors.As(err, new(*DamagedError)) {
		return err
	}
	return os.Remove(u.path("removing", id.hex()))
}

// dropLayersLocked takes from the user those of the layers that no image of the user needs.
func (u User) dropLayersLocked(layers []Digest, done *Removed) error {
	images, err := digestsLocked(u.path("images"))
	if err != nil {
		return err
	}
	needed := map[Digest]bool{}
	for _, id := range images {
		own, err := u.store.readLayers(id)
		if err != nil {
			return fmt.Errorf("%w, or remove the image", err)
		}
		for _, l := range own {
			needed[l] = true
		}
	}
	if pulls, err := u.hasPullLocked(); pulls || err != nil {
		return err
	}
	for _, l := range layers {
		if needed[l] {
			continue
		}
		err := os.Remove(u.path("layers", l.hex()))
		if errors.Is(err, unix.ENOENT) {
			continue // the image has the layer twice
		}
		if err != nil {
			return err
		}
		needed[l] = true // done names the layer once
		done.Layers = append(done.Layers, l)
		if info, err := os.Stat(u.store.path("layers", l.hex(), tarName)); err == nil {
			done.Bytes += info.Size()
		}
	}
	return nil
}
