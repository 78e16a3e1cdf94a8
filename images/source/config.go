package source

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// config has the fields of a config that this package needs.
type config struct {
	platform
	Config struct{} `json:"config"`
	RootFS rootFS   `json:"rootfs"`
}

type rootFS struct {
	Type    string  `json:"type"`
	DiffIDs diffIDs `json:"diff_ids"`
}

// diffIDs are at most maxLayers digests.
type diffIDs []string

func (d *diffIDs) UnmarshalJSON(text []byte) error {
	if len(text) > maxLayers*(2*len(digestPrefix)+80) {
		return errors.New("too many or too long DiffIDs")
	}
	return json.Unmarshal(text, (*[]string)(d))
}

// parseConfig checks that a config fits the number of layers.
func parseConfig(text []byte, layers int) (*config, error) {
	var c config
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	if c.RootFS.Type != "layers" && c.RootFS.Type != "" { // Docker reads no type
		return nil, fmt.Errorf("unsupported root file system type %q of the config; \"layers\" is supported", c.RootFS.Type)
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, fmt.Errorf("the config has %d DiffIDs for %d layers", len(c.RootFS.DiffIDs), layers)
	}
	if layers > maxLayers {
		return nil, fmt.Errorf("the image has %d layers; at most %d are allowed", layers, maxLayers)
	}
	for _, id := range c.RootFS.DiffIDs {
		if !validDigest(id) {
			return nil, fmt.Errorf("unsupported DiffID %q; sha256 is supported", line(id, 100))
		}
	}
	return &c, nil
}

// check says whether an image can be used where a platform is wanted. Some tools leave the platform out, and many the
// variant.
func (c *config) check(want platform) error {
	have := platform{cmp.Or(c.OS, want.OS), cmp.Or(c.Architecture, want.Architecture), c.Variant}.normalized()
	if have.Variant == "" && have.Architecture == want.Architecture {
		have.Variant = want.Variant
	}
	if _, ok := have.rank(want); ok {
		return nil
	}
	name, way := line(have.String(), 60), ""
	if have.OS == "linux" {
		way = "; choose it with --platform " + name
	}
	return fmt.Errorf("the image is for %s, not for %s%s", name, want, way)
}

// emptyConfig is the config of a root file system without one.
func emptyConfig(p platform, diffID string) ([]byte, error) {
	return json.Marshal(config{platform: p, RootFS: rootFS{Type: "layers", DiffIDs: diffIDs{diffID}}})
}

// madeDigest is the digest of a manifest that is made for an image without one. It depends only on the config and
// the layers.
func madeDigest(config []byte, layers []Layer) (string, error) {
	d := document{SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: &descriptor{MediaType: types.OCIConfigJSON, Digest: digestOf(config), Size: int64(len(config))}}
	for _, l := range layers {
		d.Layers = append(d.Layers, descriptor{MediaType: types.OCIUncompressedLayer, Digest: l.Digest, Size: l.Size})
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	return digestOf(text), nil
}
