package sandboxtest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	imagename "github.com/sandbox-runtime/sandbox-runtime/images/name"
	"github.com/sandbox-runtime/sandbox-runtime/images/source"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// An image of a fake has one layer, and the reference of its pull in the config.
func newImage(text string) sandbox.Image {
	layer := digestOf([]byte("layer of " + text))
	config, _ := json.Marshal(map[string]any{ // strings and maps alone: it has a form in JSON
		"os": "linux", "architecture": "amd64", "author": text,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer}},
	})
	return sandbox.Image{ID: digestOf(config), Size: int64(len(text)), Layers: []string{layer}, Config: config, Created: time.Unix(0, 0).UTC()}
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// PullImage implements [sandbox.ImageKeeper]. It reads nothing: each valid reference is one of an image that the fake
// makes up.
func (f *Fake) PullImage(_ context.Context, text string, o sandbox.PullOptions) (sandbox.Image, error) {
	if f.Missing != nil {
		return sandbox.Image{}, f.Missing
	}
	r, err := source.Parse(text)
	if err != nil {
		return sandbox.Image{}, &sandbox.ConfigError{Reason: err.Error()}
	}
	name := o.Name
	if r.Kind == source.Registry {
		name = cmp.Or(name, text)
	}
	if name != "" {
		if name, err = fullName(name); err != nil {
			return sandbox.Image{}, &sandbox.ConfigError{Reason: err.Error()}
		}
	}
	image := newImage(r.String())
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.images == nil {
		f.images, f.imageNames = map[string]sandbox.Image{}, map[string]string{}
	}
	f.images[image.ID] = image
	if name != "" {
		f.imageNames[name] = image.ID
	}
	if o.Progress != nil {
		o.Progress(sandbox.ImageProgress{Layer: image.Layers[0], State: sandbox.LayerAdded, Done: image.Size, Total: image.Size})
	}
	return f.imageLocked(image.ID), nil
}

func fullName(text string) (string, error) {
	n, err := imagename.Parse(text)
	return n.Full(), err
}

// imageLocked is an image with its names.
func (f *Fake) imageLocked(id string) sandbox.Image {
	image := f.images[id]
	image.References = []sandbox.ImageReference{}
	for _, name := range slices.Sorted(maps.Keys(f.imageNames)) {
		if f.imageNames[name] == id {
			image.References = append(image.References, sandbox.ImageReference{Name: name, Digest: digestOf([]byte(name))})
		}
	}
	return image
}

// findImageLocked returns an id, and the name that was given, if it was no id.
func (f *Fake) findImageLocked(text string) (id, name string, err error) {
	if full, err := fullName(text); err == nil && f.imageNames[full] != "" {
		return f.imageNames[full], full, nil
	}
	for _, id := range slices.Sorted(maps.Keys(f.images)) {
		if digits := strings.TrimPrefix(text, "sha256:"); len(digits) >= 4 && strings.HasPrefix(id, "sha256:"+digits) {
			return id, "", nil
		}
	}
	return "", "", fmt.Errorf("image %s %w", text, sandbox.ErrNotFound)
}

// Images implements [sandbox.ImageKeeper].
func (f *Fake) Images(context.Context) ([]sandbox.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []sandbox.Image{}
	for _, id := range slices.Sorted(maps.Keys(f.images)) {
		image := f.imageLocked(id)
		image.Layers, image.Config = nil, nil
		all = append(all, image)
	}
	return all, nil
}

// Image implements [sandbox.ImageKeeper].
func (f *Fake) Image(_ context.Context, text string) (sandbox.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, _, err := f.findImageLocked(text)
	if err != nil {
		return sandbox.Image{}, err
	}
	return f.imageLocked(id), nil
}

// RemoveImage implements [sandbox.ImageKeeper].
func (f *Fake) RemoveImage(_ context.Context, text string) (sandbox.RemovedImages, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, name, err := f.findImageLocked(text)
	if err != nil {
		return sandbox.RemovedImages{}, err
	}
	names := f.imageLocked(id).References
	switch {
	case name != "" && len(names) > 1:
		delete(f.imageNames, name)
		return sandbox.RemovedImages{Untagged: []string{name}}, nil
	case len(names) > 1:
		return sandbox.RemovedImages{}, fmt.Errorf("image %s has several names; remove the names", id)
	}
	return f.dropImageLocked(id), nil
}

func (f *Fake) dropImageLocked(id string) sandbox.RemovedImages {
	image := f.imageLocked(id)
	removed := sandbox.RemovedImages{Deleted: []string{id}, DeletedLayers: image.Layers, Bytes: image.Size}
	for _, r := range image.References {
		removed.Untagged = append(removed.Untagged, r.Name)
		delete(f.imageNames, r.Name)
	}
	delete(f.images, id)
	return removed
}

// PruneImages implements [sandbox.ImageKeeper].
func (f *Fake) PruneImages(context.Context) (sandbox.RemovedImages, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var removed sandbox.RemovedImages
	for _, id := range slices.Sorted(maps.Keys(f.images)) {
		if len(f.imageLocked(id).References) > 0 {
			continue
		}
		one := f.dropImageLocked(id)
		removed.Deleted = append(removed.Deleted, one.Deleted...)
		removed.DeletedLayers = append(removed.DeletedLayers, one.DeletedLayers...)
		removed.Bytes += one.Bytes
	}
	return removed, nil
}

// VerifyImage implements [sandbox.ImageKeeper]. All images of a fake are whole.
func (f *Fake) VerifyImage(ctx context.Context, text string) error {
	_, err := f.Image(ctx, text)
	return err
}
