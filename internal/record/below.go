package record

import (
	"errors"
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// OpenBelow mounts the image of a snapshot's layer: with this sandbox's ids and
// read-only, or for owners with those that are in it.
func (l Roots) OpenBelow(r Record, ref LayerRef, owners bool) (*os.File, error) {
	f, err := store.MountImage(l.ImagePath(ref.Image))
	if err != nil {
		return nil, fmt.Errorf("layers of a snapshot: %w", err)
	}
	if owners {
		return f, nil
	}
	if err := rootfs.MapFrozen(f, r.UIDMappings, r.GIDMappings); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
