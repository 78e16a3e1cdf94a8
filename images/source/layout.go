package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

func openLayout(ctx context.Context, dir, tag string, want platform, maxBytes int64) (*Image, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return layoutImage(ctx, tree{root}, tag, want, maxBytes)
}

// layoutImage is an image of a layout (image-spec v1.1, image-layout.md). It takes over the objects.
func layoutImage(ctx context.Context, from objects, tag string, want platform, maxBytes int64) (*Image, error) {
	image, err := readLayout(ctx, from, tag, want, maxBytes)
	return withClose(image, err, from.close)
}

func readLayout(ctx context.Context, from objects, tag string, want platform, maxBytes int64) (*Image, error) {
	if err := checkLayoutVersion(from); err != nil {
		return nil, err
	}
	text, err := read(from, "index.json", maxManifest)
	if err != nil {
		return nil, err
	}
	index, err := parseDocument(text, types.OCIImageIndex)
	if err != nil {
		return nil, fmt.Errorf("index.json: %w", err)
	}
	entries, err := tagged(index.Manifests, tag)
	if err != nil {
		return nil, err
	}
	c := &chooser{from: blobs{from}, want: want}
	f, err := c.chooseAmong(ctx, entries)
	if err != nil {
		return nil, err
	}
	image, err := newImage(f, maxBytes, func(ctx context.Context, _ int, d descriptor) (io.ReadCloser, error) {
		return checked(ctx, from, blobName(d.Digest), d.Digest, d.Size)
	})
	if err != nil {
		return nil, err
	}
	image.Resolved = f.entry
	return image, nil
}

func checkLayoutVersion(from objects) error {
	text, err := read(from, "oci-layout", 4<<10)
	if err != nil {
		return fmt.Errorf("not an OCI layout: %w", err)
	}
	var layout struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := json.Unmarshal(text, &layout); err != nil {
		return fmt.Errorf("oci-layout: %w", err)
	}
	if layout.Version != "1.0.0" {
		return fmt.Errorf("unsupported OCI layout of version %q; 1.0.0 is supported", layout.Version)
	}
	return nil
}

// blobs are the documents of a layout.
type blobs struct{ objects }

func (b blobs) document(ctx context.Context, d descriptor) ([]byte, types.MediaType, error) {
	text, err := b.config(ctx, d)
	return text, d.MediaType, err
}

func (b blobs) config(ctx context.Context, d descriptor) ([]byte, error) {
	return whole(checked(ctx, b, blobName(d.Digest), d.Digest, d.Size))
}

// tagged returns the entries of index.json with the tag. Without a tag there must be one image, or one for each platform.
func tagged(all []descriptor, tag string) ([]descriptor, error) {
	var found []descriptor
	var tags []string
	unnamed := 0
	for _, d := range all {
		if tag == "" || d.Annotations.RefName == tag {
			found = append(found, d)
			if d.Platform == nil && d.isImage() {
				unnamed++
			}
		}
		if t := d.Annotations.RefName; t != "" && !slices.Contains(tags, t) {
			tags = append(tags, t)
		}
	}
	switch {
	case len(all) == 0:
		return nil, errors.New("the layout has no image")
	case len(found) == 0 && len(tags) == 0:
		return nil, fmt.Errorf("no image with the tag %q; the layout has no tags: leave the tag out", tag)
	case len(found) == 0:
		return nil, fmt.Errorf("no image with the tag %q; the tags are %s", tag, line(strings.Join(tags, ", "), 200))
	case tag == "" && len(tags) > 1:
		return nil, fmt.Errorf("several images; add one of the tags %s", line(strings.Join(tags, ", "), 200))
	case tag == "" && unnamed > 1:
		return nil, errors.New("several images without tags; save one image")
	}
	return found, nil
}
