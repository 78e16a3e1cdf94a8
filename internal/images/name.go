package images

import (
	"context"
	"errors"

	"github.com/distribution/reference"

	"github.com/sandbox-runtime/sandbox-runtime/images/store"
)

// FullName is the name of an image with the defaults that Docker fills in: busybox is
// docker.io/library/busybox:latest. A digest makes a tag superfluous.
func FullName(text string) (string, error) {
	named, err := reference.ParseDockerRef(text)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}

// named calls f with the image that a name means: a full name, then a name without its defaults, then a repository with
// the digest of a manifest, and then an id or the beginning of an id.
func (k *Keeper) named(ctx context.Context, uid uint32, name string, f func(u store.User, name string) error) error {
	user, err := k.user(ctx, uid)
	if err != nil {
		return err
	}
	if _, err := store.ParseDigest(name); err != nil { // else it is an id
		if full, err := FullName(name); err == nil {
			if full, err = digested(ctx, user, full); err != nil {
				return told(err)
			}
			if err := f(user, full); !errors.Is(err, store.ErrNotFound) {
				return told(err)
			}
		}
	}
	return told(f(user, name))
}

// digested returns the id of the image with this repository and digest of a manifest, or else the name as it is.
func digested(ctx context.Context, u store.User, full string) (string, error) {
	wanted, err := reference.ParseNormalizedNamed(full)
	if err != nil {
		return full, nil //nolint:nilerr // the store knows no such name either
	}
	canonical, ok := wanted.(reference.Canonical)
	if !ok {
		return full, nil
	}
	images, err := u.Images(ctx)
	if err != nil {
		return "", err
	}
	found := full
	for _, i := range images {
		for _, r := range i.References {
			if r.Name == full {
				return full, nil
			}
			named, err := reference.ParseNormalizedNamed(r.Name)
			if err == nil && named.Name() == wanted.Name() && string(r.Digest) == canonical.Digest().String() {
				found = string(i.ID)
			}
		}
	}
	return found, nil
}
