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

// maxIndexes bounds the indexes between index.json and the manifest.
const maxIndexes = 3

func openLayout(dir, tag string, want platform, maxBytes int64) (*Image, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return layoutImage(tree{root}, tag, want, maxBytes)
}

// layoutImage is an image of a layout (image-spec v1.1, image-layout.md). It takes over the objects.
func layoutImage(from objects, tag string, want platform, maxBytes int64) (*Image, error) {
	image, err := readLayout(from, tag, want, maxBytes)
	if err != nil {
		return nil, errors.Join(err, from.close())
	}
	image.close = from.close
	return image, nil
}

func readLayout(from objects, tag string, want platform, maxBytes int64) (*Image, error) {
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
	entry, err := tagged(index.Manifests, tag, want)
	if err != nil {
		return nil, err
	}
	resolved := entry.Digest
	for range maxIndexes {
		doc, err := layoutDocument(from, entry)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", entry.Digest, err)
		}
		if !doc.isIndex() {
			return layoutManifest(from, entry.Digest, resolved, doc, want, maxBytes)
		}
		if entry, err = chooseOrOnly(doc.Manifests, want); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("more than %d indexes lead to the manifest", maxIndexes)
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

// layoutDocument reads a manifest or an index.
func layoutDocument(from objects, d descriptor) (*document, error) {
	content, err := checked(context.Background(), from, blobName(d.Digest), d.Digest, d.Size)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(content)
	if err = errors.Join(err, content.Close()); err != nil {
		return nil, err
	}
	return parseDocument(text, d.MediaType)
}

func layoutManifest(from objects, digest, resolved string, doc *document, want platform, maxBytes int64) (*Image, error) {
	content, err := checked(context.Background(), from, blobName(doc.Config.Digest), doc.Config.Digest, doc.Config.Size)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	config, err := io.ReadAll(content)
	if err = errors.Join(err, content.Close()); err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	image, err := newImage(digest, config, doc, want, maxBytes, func(ctx context.Context, _ int, d descriptor) (io.ReadCloser, error) {
		return checked(ctx, from, blobName(d.Digest), d.Digest, d.Size)
	})
	if err != nil {
		return nil, err
	}
	image.Resolved = resolved
	return image, nil
}

// tagged returns the entry of index.json with the tag. Without a tag there must be one choice.
func tagged(all []descriptor, tag string, want platform) (descriptor, error) {
	var found []descriptor
	var tags []string
	for _, d := range all {
		if tag == "" || d.Annotations.RefName == tag {
			found = append(found, d)
		}
		if t := d.Annotations.RefName; t != "" && !slices.Contains(tags, t) {
			tags = append(tags, t)
		}
	}
	if len(found) == 0 && len(all) == 0 {
		return descriptor{}, errors.New("the layout has no image")
	}
	if len(found) == 0 {
		return descriptor{}, fmt.Errorf("no image with the tag %q; the tags are %s", tag, strings.Join(tags, ", "))
	}
	if tag == "" && len(tags) > 1 {
		return descriptor{}, fmt.Errorf("several images; add one of the tags %s", strings.Join(tags, ", "))
	}
	return chooseOrOnly(found, want)
}
