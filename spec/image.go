package spec

import (
	"encoding/json"
	"time"
)

// An Image is an image that a user can use.
type Image struct {
	// ID is the digest of the image's config.
	ID string `json:"id"`
	// References are its names. An image can have none.
	References []ImageReference `json:"references"`
	// Created is the time in the config; zero: not known.
	Created time.Time `json:"created,omitzero"`
	// Size is that of its layers, uncompressed, in bytes.
	Size int64 `json:"size"`
	// Damaged, if not empty, tells why the image cannot be used.
	Damaged string `json:"damaged,omitempty"`
	// Layers are the digests of the uncompressed layers, the lowest first. A list of images has no layers.
	Layers []string `json:"layers,omitempty"`
	// Config is the config as the image has it. A list of images has no configs.
	Config json.RawMessage `json:"config,omitempty"`
}

// An ImageReference is a name of an image.
type ImageReference struct {
	// Name is a full name, such as docker.io/library/busybox:latest.
	Name string `json:"name"`
	// Digest is that of the manifest to which the name has led. Archives and directories can have none.
	Digest string `json:"digest,omitempty"`
}

// RemovedImages tells the effect of a removal of images.
type RemovedImages struct {
	// Untagged are names.
	Untagged []string `json:"untagged"`
	// Deleted are the ids of images, and DeletedLayers the digests of layers.
	Deleted       []string `json:"deleted"`
	DeletedLayers []string `json:"deleted_layers"`
	// Bytes is the size of the layers. Layers that another user has stay on disk.
	Bytes int64 `json:"bytes"`
}
