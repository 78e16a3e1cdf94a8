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

// Images returns the images of the user, the last created first. It reads the images without the lock: otherwise a
// user with many layers would make all other users wait.
func (u User) Images(ctx context.Context) ([]Image, error) {
	all, err := u.images(ctx)
	return all, during("list images", err)
}

func (u User) images(ctx context.Context) ([]Image, error) {
	ids, references, err := u.names(ctx)
	if err != nil {
		return nil, err
	}
	var all []Image
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		image, _, err := u.store.describe(id, references)
		if err == nil && image.Damaged == "" {
			all = append(all, image)
			continue
		}
		// Another process may have changed the image meanwhile.
		image, exists, err := u.describeAgain(ctx, id, references)
		if err != nil {
			return nil, err
		}
		if exists {
			all = append(all, image)
		}
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// names are the ids and references of the user.
func (u User) names(ctx context.Context) (ids []Digest, references []Reference, err error) {
	unlock, err := u.store.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if ids, err = digestsLocked(u.path("images")); err != nil {
		return nil, nil, err
	}
	references, err = u.referencesLocked()
	return ids, references, err
}

// describeAgain returns an image under the lock, if the user still has the image.
func (u User) describeAgain(ctx context.Context, id Digest, references []Reference) (image Image, exists bool, err error) {
	unlock, err := u.store.lock(ctx)
	if err != nil {
		return image, false, err
	}
	defer unlock()
	if exists, err = u.hasLocked("images", id); err != nil || !exists {
		return image, false, err
	}
	image, err = u.store.describeLocked(id, references)
	return image, true, err
}

// describeLocked returns an image, and marks damaged content. The references can be of other images, too.
func (s *Store) describeLocked(id Digest, references []Reference) (Image, error) {
	image, mark, err := s.describe(id, references)
	if mark {
		err = errors.Join(err, markLocked(s.imageDir(id)))
	}
	return image, err
}

// describe returns an image, and says whether its directory should be marked as damaged.
func (s *Store) describe(id Digest, references []Reference) (image Image, mark bool, err error) {
	image = Image{ID: id}
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
		return image, true, nil
	case err != nil:
		return image, false, err
	}
	if c.Created != nil {
		image.Created = *c.Created
	}
	image.Layers = layers
	if list, err := s.readLayers(id); err != nil && !errors.As(err, &damaged) {
		return image, false, err
	} else if !slices.Equal(list, layers) {
		image.Damaged = "the list of layers differs from the config"
		return image, true, nil
	}
	image.Size, image.Damaged, err = s.state(id, layers)
	return image, false, err
}

// state returns the size of the layers of an image, and which part of the image is missing or known to be damaged.
func (s *Store) state(id Digest, layers []Digest) (size int64, damaged string, err error) {
	ok, err := usable(s.imageDir(id), indexName)
	if err != nil {
		return 0, "", err
	}
	if !ok {
		damaged = "the index is missing or damaged"
	}
	dir, err := s.openLayersDir()
	if err != nil {
		return 0, "", err
	}
	defer unix.Close(dir)
	for _, d := range layers {
		bytes, ok, err := layerAt(dir, d)
		if err != nil {
			return 0, "", &os.PathError{Op: "stat", Path: s.layerDir(d), Err: err}
		}
		size += bytes
		if !ok && damaged == "" {
			damaged = "layer " + string(d) + " is missing or damaged"
		}
	}
	return size, damaged, nil
}

// openLayersDir opens the directory of all layers. Paths below the directory are short for the kernel.
func (s *Store) openLayersDir() (int, error) {
	dir, err := unix.Open(s.path("layers"), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: s.path("layers"), Err: err}
	}
	return dir, nil
}

// layerAt returns the size of a layer, and says whether the layer is there and not known to be damaged. An image can have
// many layers, so that layerAt makes two system calls only.
func layerAt(dir int, d Digest) (size int64, usable bool, err error) {
	var tar, mark unix.Stat_t
	err = unix.Fstatat(dir, filepath.Join(d.hex(), tarName), &tar, unix.AT_SYMLINK_NOFOLLOW)
	if isAbsent(err) || err == nil && tar.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	err = unix.Fstatat(dir, filepath.Join(d.hex(), damagedName), &mark, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return tar.Size, true, nil
	}
	return tar.Size, false, err
}

// markLocked marks the content of a directory as damaged, if the directory exists.
func markLocked(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, damagedName), unix.O_CREAT|unix.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return explain(err)
	}
	return errors.Join(f.Close(), syncDir(dir))
}
