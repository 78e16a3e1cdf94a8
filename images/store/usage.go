package store

import (
	"context"
	"os"
)

// A Usage tells the disk space that a user's layers and images take. A layer that other users have, too, counts
// for each user.
type Usage struct {
	Layers, Images, References int
	Bytes                      int64
}

// Usage measures the user's layers and images, also layers that no image needs.
func (u User) Usage(ctx context.Context) (Usage, error) {
	use, err := locked(ctx, u.store, u.usageLocked)
	return use, during("measure images", err)
}

func (u User) usageLocked() (use Usage, err error) {
	layers, err := digestsLocked(u.path("layers"))
	if err != nil {
		return use, err
	}
	images, err := digestsLocked(u.path("images"))
	if err != nil {
		return use, err
	}
	references, err := digestsLocked(u.path("references"))
	if err != nil {
		return use, err
	}
	use.Layers, use.Images, use.References = len(layers), len(images), len(references)
	var paths []string
	for _, d := range layers {
		paths = append(paths, u.store.path("layers", d.hex(), tarName))
	}
	for _, d := range images {
		paths = append(paths, u.store.path("images", d.hex(), configName), u.store.path("images", d.hex(), indexName))
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if isAbsent(err) { // damaged
			continue
		}
		if err != nil {
			return use, err
		}
		use.Bytes += info.Size()
	}
	return use, nil
}

// Within returns the store with other limits.
func (s *Store) Within(l Limits) *Store {
	limited := *s
	limited.limits = l
	return &limited
}

// Inspect returns the image of the user that a name, an id, or the beginning of an id means, and its config.
func (u User) Inspect(ctx context.Context, name string) (Image, []byte, error) {
	unlock, err := u.store.lock(ctx)
	if err != nil {
		return Image{}, nil, err
	}
	defer unlock()
	image, err := u.findLocked(name)
	if err != nil {
		return Image{}, nil, during("inspect image "+clip(name), err)
	}
	raw, _, _, err := u.store.readConfig(image.ID)
	return image, raw, during("inspect image "+clip(name), err)
}
