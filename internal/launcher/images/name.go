package images

import (
	"context"
	"errors"

	"github.com/sandbox-runtime/sandbox-runtime/images/name"
	"github.com/sandbox-runtime/sandbox-runtime/images/store"
)

// withNamed calls f with the image that a name means: a full name, then a name without its defaults, then a repository with
// the digest of a manifest, and then an id or the beginning of an id.
func (k *Keeper) withNamed(ctx context.Context, uid uint32, text string, f func(u store.User, name string) error) error {
	return k.withUser(ctx, uid, func(user store.User) error {
		if n, err := name.Parse(text); err == nil && !name.IsDigest(text) { // a digest is an id
			known, err := digested(ctx, user, n)
			if err != nil {
				return err
			}
			if err := f(user, known); !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		return f(user, text)
	})
}

// digested returns the id of the image with this repository and digest of a manifest, or else the full name.
func digested(ctx context.Context, u store.User, n name.Name) (string, error) {
	if n.Digest == "" {
		return n.Full(), nil
	}
	images, err := u.Images(ctx)
	if err != nil {
		return "", err
	}
	found := n.Full()
	for _, i := range images {
		for _, r := range i.References {
			if r.Name == n.Full() {
				return n.Full(), nil
			}
			other, err := name.Parse(r.Name)
			if err == nil && other.Host == n.Host && other.Repository == n.Repository && string(r.Digest) == n.Digest {
				found = string(i.ID)
			}
		}
	}
	return found, nil
}
