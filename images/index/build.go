package index

import (
	"context"
	"fmt"
	"os"
)

// Summary describes a built index.
type Summary struct {
	Files int   // names in the tree, without the root
	Bytes int64 // content of all regular files
	Size  int64 // of the index itself
}

// Build writes the index of the layers to out, which must be empty. The layers are
// uncompressed archives, the lowest first. The N-th layer is the N-th further device of
// the mount, also if no file refers to it.
//
// After an error out has no superblock, so that no kernel mounts it. Build reads the layers at
// offsets, and keeps no descriptor.
func Build(ctx context.Context, layers []*os.File, out *os.File, l Limits) (Summary, error) {
	l = l.withDefaults()
	if len(layers) > l.Layers {
		return Summary{}, &LimitError{Limit: "layers", Max: int64(l.Layers)}
	}
	b := &builder{tree: newTree(l), ctx: ctx, out: out, devices: make([]int64, len(layers))}
	b.copied = headBlocks(len(layers)) * blockSize
	for n, f := range layers {
		if err := b.addLayer(n, f); err != nil {
			return Summary{}, fmt.Errorf("layer %d of %d: %w", n+1, len(layers), err)
		}
	}
	if err := b.addMountPoints(); err != nil {
		return Summary{}, fmt.Errorf("add mount points: %w", err)
	}
	return b.write()
}
