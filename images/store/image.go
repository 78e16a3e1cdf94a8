package store

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// damagedName marks content that is not the content of its digest. The next pull replaces the content.
const damagedName = "damaged"

// An Image is an image of a user.
type Image struct {
	ID         Digest
	References []Reference // by name; an image can have none
	Created    time.Time   // of the config; zero if unknown
	Size       int64       // of the tars of its layers, in bytes
	Layers     []Digest    // the DiffIDs, the lowest first
	// Damaged, if not empty, tells why the image cannot be used.
	Damaged string
}

// Images returns the images of the user, the last created first.
func (u User) Images(ctx context.Context) ([]Image, error) {
	unlock, err := u.store.lock(ctx)
	if err != nil {
		return nil, during("list images", err)
	}
	defer unlock()
	all, err := u.imagesLocked()
	return all, during("list images", err)
}

func (u User) imagesLocked() ([]Image, error) {
	ids, err := digestsLocked(u.path("images"))
	if err != nil {
		return nil, err
	}
	references, err := u.referencesLocked()
	if err != nil {
		return nil, err
	}
	var all []Image
	for _, id := range ids {
		image, err := u.store.describeLocked(id, references)
		if err != nil {
			return nil, err
		}
		all = append(all, image)
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// describeLocked returns an image. The references can be of other images, too.
func (s *Store) describeLocked(id Digest, references []Reference) (Image, error) {
	image := Image{ID: id}
	for _, r := range references {
		if r.Image == id {
			image.References = append(image.References, r)
		}
	}
	_, c, layers, err := s.readConfig(id)
	damaged := (*DamagedError)(nil)
	switch {
	case errors.As(err, &damaged):
		image.Damaged = damaged.Reason
		return image, markLocked(s.imageDir(id))
	case errors.Is(err, fs.ErrNotExist):
		image.Damaged = "the config is missing"
		return image, markLocked(s.imageDir(id))
	case err != nil:
		return image, err
	}
	if c.Created != nil {
		image.Created = *c.Created
	}
	image.Layers = layers
	if list, err := s.readLayers(id); err != nil && !errors.As(err, &damaged) {
		return image, err
	} else if !slices.Equal(list, layers) {
		image.Damaged = "the list of layers differs from the config"
		return image, markLocked(s.imageDir(id))
	}
	for _, d := range layers {
		if info, err := os.Stat(s.path("layers", d.hex(), tarName)); err == nil {
			image.Size += info.Size()
		}
	}
	image.Damaged, err = s.damageLocked(id, layers)
	return image, err
}

// damageLocked tells which part of an image is missing or known to be damaged.
func (s *Store) damageLocked(id Digest, layers []Digest) (string, error) {
	if ok, err := usable(s.imageDir(id)); err != nil || !ok {
		return "the index is damaged", err
	}
	for _, d := range layers {
		if ok, err := usable(s.layerDir(d)); err != nil || !ok {
			return "layer " + string(d) + " is missing or damaged", err
		}
	}
	return "", nil
}

// markLocked marks the content of a directory as damaged, if the directory exists.
func markLocked(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, damagedName), unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return explain(err)
	}
	return errors.Join(f.Close(), syncDir(dir))
}
