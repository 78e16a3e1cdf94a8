package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// descriptor has the fields of a descriptor that are used. A field that is not here costs no memory.
type descriptor struct {
	MediaType    types.MediaType `json:"mediaType"`
	ArtifactType types.MediaType `json:"artifactType,omitempty"`
	Digest       string          `json:"digest"`
	Size         int64           `json:"size"`
	Platform     *platform       `json:"platform,omitempty"`
	Annotations  annotations     `json:"annotations,omitzero"`
}

type annotations struct {
	RefName string `json:"org.opencontainers.image.ref.name,omitempty"`
	// ReferenceType is "attestation-manifest" if the manifest is about another one.
	ReferenceType string `json:"vnd.docker.reference.type,omitempty"`
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
	ArtifactType  types.MediaType `json:"artifactType,omitempty"`
	Config        *descriptor     `json:"config,omitempty"`
	Layers        descriptors     `json:"layers,omitempty"`
	Manifests     descriptors     `json:"manifests,omitempty"`
}

// errSchema1 is of manifests that have the layers of an image, and no config.
var errSchema1 = errors.New("unsupported manifest of schema version 1, as Docker wrote before 2016; " +
	"convert the image, as skopeo copy --format v2s2 does, or pull another tag")

// parseDocument parses a manifest or an index. The fields of the document tell its kind. Media types that are declared for
// the document, as by a server or an index, must not contradict the fields: two programs can read a document of two kinds
// in two ways (CVE-2021-41190).
func parseDocument(text []byte, declared ...types.MediaType) (*document, error) {
	if len(text) > maxManifest {
		return nil, fmt.Errorf("the manifest is larger than %d bytes", maxManifest)
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("parse manifest: %w", err)
	}
	switch {
	case d.SchemaVersion == 1:
		return nil, errSchema1
	case d.SchemaVersion != 2 && d.SchemaVersion != 0: // some tools leave the version out
		return nil, fmt.Errorf("unsupported manifest of schema version %d; version 2 is supported", d.SchemaVersion)
	}
	is, err := d.kind(declared)
	if err != nil {
		return nil, err
	}
	for _, t := range append(declared, d.MediaType) {
		if k := kindOf(t); (k == manifestKind || k == indexKind) && k != is {
			return nil, fmt.Errorf("the content of the manifest does not fit the media type %q", line(string(t), 100))
		}
	}
	if kindOf(d.MediaType) == otherKind {
		return nil, &notImageError{"manifest", d.MediaType}
	}
	if is == indexKind {
		if d.Manifests == nil {
			d.Manifests = descriptors{}
		}
		return &d, nil // an entry is checked when it is used
	}
	return &d, d.check()
}

// kind is the kind of document by its fields. An index can be empty.
func (d *document) kind(declared []types.MediaType) (kind, error) {
	isManifest := d.Config != nil || d.Layers != nil
	switch {
	case isManifest && d.Manifests != nil:
		return "", errors.New("the content of the manifest is that of an index, too")
	case isManifest:
		return manifestKind, nil
	case d.Manifests != nil:
		return indexKind, nil
	}
	for _, t := range append(declared, d.MediaType) {
		switch kindOf(t) {
		case indexKind:
			return indexKind, nil
		case otherKind:
			return "", &notImageError{"manifest", t}
		}
	}
	return "", errors.New("neither a manifest of an image nor an index")
}

func (d *document) isIndex() bool { return d.Manifests != nil }

// check checks a manifest.
func (d *document) check() error {
	if d.Config == nil {
		return errors.New("the manifest has no config")
	}
	if err := checkConfigType(d.Config.MediaType); err != nil {
		return err
	}
	if kindOf(d.Config.MediaType) == anyKind && d.ArtifactType != "" {
		return &notImageError{"artifact", d.ArtifactType}
	}
	if err := d.Config.check(maxConfig); err != nil {
		return fmt.Errorf("config %q: %w", line(d.Config.Digest, 100), err)
	}
	for _, l := range d.Layers {
		if err := checkLayerType(l.MediaType); err != nil {
			return err
		}
		if err := l.check(0); err != nil {
			return fmt.Errorf("layer %q: %w", line(l.Digest, 100), err)
		}
	}
	return nil
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
