package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// dockerZstdLayer is a media type that buildkit writes, and go-containerregistry lacks.
const dockerZstdLayer types.MediaType = "application/vnd.docker.image.rootfs.diff.tar.zstd"

// The supported media types.
var (
	manifestTypes = []types.MediaType{types.OCIManifestSchema1, types.DockerManifestSchema2}
	indexTypes    = []types.MediaType{types.OCIImageIndex, types.DockerManifestList}
	configTypes   = []types.MediaType{types.OCIConfigJSON, types.DockerConfigJSON}
	layerTypes    = []types.MediaType{types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer, types.DockerLayer, dockerZstdLayer, types.DockerUncompressedLayer}
)

// descriptor has the fields of a descriptor that are used. A field that is not here costs no memory.
type descriptor struct {
	MediaType   types.MediaType `json:"mediaType"`
	Digest      string          `json:"digest"`
	Size        int64           `json:"size"`
	Platform    *platform       `json:"platform,omitempty"`
	Annotations annotations     `json:"annotations,omitzero"`
}

type annotations struct {
	RefName string `json:"org.opencontainers.image.ref.name,omitempty"`
}

// descriptors are at most maxLayers.
type descriptors []descriptor

// UnmarshalJSON reads one descriptor after another: a manifest of 4 MiB has room for a million.
func (d *descriptors) UnmarshalJSON(text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	start, err := dec.Token()
	if err != nil || start == nil {
		return err
	}
	if start != json.Delim('[') {
		return errors.New("a list of descriptors is not an array")
	}
	*d = descriptors{} // which is there, other than nil
	for dec.More() {
		if len(*d) == maxLayers {
			return fmt.Errorf("more than %d layers or manifests", maxLayers)
		}
		var one descriptor
		if err := dec.Decode(&one); err != nil {
			return err
		}
		*d = append(*d, one)
	}
	return nil
}

// document is a manifest or an index.
type document struct {
	SchemaVersion int             `json:"schemaVersion"`
	MediaType     types.MediaType `json:"mediaType,omitempty"`
	Config        *descriptor     `json:"config,omitempty"`
	Layers        descriptors     `json:"layers,omitempty"`
	Manifests     descriptors     `json:"manifests,omitempty"`
}

// parseDocument parses a manifest or an index. Of a document of two kinds two programs can have two opinions
// (CVE-2021-41190), so it is refused.
func parseDocument(text []byte, declared types.MediaType) (*document, error) {
	if len(text) > maxManifest {
		return nil, fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("parse manifest: %w", err)
	}
	if d.SchemaVersion != 2 {
		return nil, fmt.Errorf("unsupported manifest of schema version %d; version 2 is supported", d.SchemaVersion)
	}
	if d.MediaType != "" && declared != "" && d.MediaType != declared {
		return nil, fmt.Errorf("the manifest has the media type %q, and is declared as %q", d.MediaType, declared)
	}
	if declared == "" {
		declared = d.MediaType
	}
	if declared == "" { // OCI documents need not have the field
		declared = types.OCIManifestSchema1
		if d.Manifests != nil {
			declared = types.OCIImageIndex
		}
	}
	d.MediaType = declared
	if err := supported("manifest", declared, manifestTypes, indexTypes); err != nil {
		return nil, err
	}
	isManifest := d.Config != nil || d.Layers != nil
	if isManifest && d.Manifests != nil || d.isIndex() == isManifest {
		return nil, fmt.Errorf("the content of the manifest does not fit its media type %q", declared)
	}
	return &d, d.check()
}

func (d *document) isIndex() bool { return d.MediaType.IsIndex() }

func (d *document) check() error {
	if d.isIndex() {
		for _, m := range d.Manifests {
			if err := m.check(maxManifest); err != nil {
				return fmt.Errorf("manifest %q: %w", m.Digest, err)
			}
		}
		return nil
	}
	if d.Config == nil {
		return errors.New("the manifest has no config")
	}
	if err := supported("config", d.Config.MediaType, configTypes); err != nil {
		return err
	}
	if err := d.Config.check(maxConfig); err != nil {
		return fmt.Errorf("config %q: %w", d.Config.Digest, err)
	}
	for _, l := range d.Layers {
		if err := supported("layer", l.MediaType, layerTypes); err != nil {
			return err
		}
		if err := l.check(0); err != nil {
			return fmt.Errorf("layer %q: %w", l.Digest, err)
		}
	}
	return nil
}

// supported returns an error that names the supported types.
func supported(object string, have types.MediaType, lists ...[]types.MediaType) error {
	var names []string
	for _, list := range lists {
		for _, t := range list {
			if t == have {
				return nil
			}
			names = append(names, string(t))
		}
	}
	return fmt.Errorf("unsupported media type %q of the %s; supported are %s", line(string(have), 100), object, strings.Join(names, ", "))
}

// check checks digest and size. The limit 0 means no limit.
func (d descriptor) check(limit int64) error {
	if !validDigest(d.Digest) {
		return errors.New("unsupported digest; sha256 is supported")
	}
	if d.Size < 0 || limit > 0 && d.Size > limit {
		return fmt.Errorf("invalid size %d; at most %d bytes are allowed", d.Size, limit)
	}
	return nil
}

// mediaType is the media type of a Content-Type header.
func mediaType(header string) types.MediaType {
	t, _, err := mime.ParseMediaType(header)
	if err != nil {
		return types.MediaType(header)
	}
	return types.MediaType(t)
}

const digestPrefix = "sha256:"

// validDigest says whether the text is a digest of SHA-256 with small letters.
func validDigest(text string) bool {
	digits, ok := strings.CutPrefix(text, digestPrefix)
	return ok && len(digits) == 2*sha256.Size && strings.Trim(digits, "0123456789abcdef") == ""
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return digestPrefix + hex.EncodeToString(sum[:])
}
