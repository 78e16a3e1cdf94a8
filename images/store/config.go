package store

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// maxConfig bounds the config of an image, in bytes.
	maxConfig  = 4 << 20
	configName = "config"
	indexName  = "index"
	layersName = "layers" // the DiffIDs, one in a line: a removal does not read configs
)

// A config is the part of an image's config that the store reads (image-spec v1.1 config.md).
type config struct {
	Created *time.Time `json:"created"`
	RootFS  struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// parseConfig reads a config, which is hostile.
func (s *Store) parseConfig(raw []byte) (c config, layers []Digest, err error) {
	if len(raw) > maxConfig {
		return c, nil, fmt.Errorf("the config has more than %d bytes", maxConfig)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, nil, fmt.Errorf("the config is not valid: %w", err)
	}
	if c.RootFS.Type != "layers" && c.RootFS.Type != "" { // Docker reads no type
		return c, nil, fmt.Errorf("the config has a root file system of type %q; only layers are supported", clip(c.RootFS.Type))
	}
	if n := len(c.RootFS.DiffIDs); n > s.limits.Index.Layers {
		return c, nil, fmt.Errorf("the image has %d layers; %d are supported", n, s.limits.Index.Layers)
	}
	for _, text := range c.RootFS.DiffIDs {
		d, err := ParseDigest(text)
		if err != nil {
			return c, nil, err
		}
		layers = append(layers, d)
	}
	return c, layers, nil
}

// readConfig returns the config of an image. Its digest proves the content.
func (s *Store) readConfig(id Digest) (raw []byte, c config, layers []Digest, err error) {
	f, err := s.openContent(id, configName)
	if err != nil {
		return nil, c, nil, err
	}
	defer f.Close()
	raw, err = io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return nil, c, nil, err
	}
	if digestOf(raw) != id {
		return nil, c, nil, &DamagedError{"image " + string(id), "the config has another digest"}
	}
	c, layers, err = s.parseConfig(raw)
	return raw, c, layers, err
}

// readLayers returns the DiffIDs of an image. It is for images that are removed or not used, and so it does
// not prove the content.
func (s *Store) readLayers(id Digest) (layers []Digest, err error) {
	f, err := s.openContent(id, layersName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		d, err := ParseDigest(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, &DamagedError{"image " + string(id), "in the list of layers is an " + err.Error()}
		}
		layers = append(layers, d)
	}
	return layers, nil
}

// listOf is the content of the list of layers.
func listOf(layers []Digest) []byte {
	var list strings.Builder
	for _, l := range layers {
		fmt.Fprintln(&list, l)
	}
	return []byte(list.String())
}
