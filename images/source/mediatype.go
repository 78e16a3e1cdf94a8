package source

import (
	"fmt"
	"mime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The media types of documents.
var (
	manifestTypes = []types.MediaType{types.OCIManifestSchema1, types.DockerManifestSchema2}
	indexTypes    = []types.MediaType{types.OCIImageIndex, types.DockerManifestList}
)

// genericTypes say nothing about the content. Docker before 1.10 wrote them for configs, and still reads them. Some
// registries send them for manifests.
var genericTypes = []types.MediaType{"application/octet-stream", "application/json", "text/html", "text/plain", ""}

var configTypes = []types.MediaType{types.OCIConfigJSON, types.DockerConfigJSON,
	"application/vnd.oci.image.serialization.config.v1+json"} // of image-spec before 1.0

// layerPrefixes begin the media types of layers. What follows tells the compression, which the first bytes of the layer
// tell better.
var layerPrefixes = []string{
	"application/vnd.oci.image.layer.",                // v1.tar, nondistributable.v1.tar
	"application/vnd.docker.image.rootfs.",            // diff.tar, foreign.diff.tar
	"application/vnd.oci.image.serialization.rootfs.", // of image-spec before 1.0
	"application/vnd.docker.container.image.rootfs.",  // of drafts of schema 2
}

// A notImageError says that a manifest is of something else than an image.
type notImageError struct {
	object    string
	mediaType types.MediaType
}

func (e *notImageError) Error() string {
	return fmt.Sprintf("not an image: the %s has the media type %q; use the tool for such artifacts, or name another tag", e.object, line(string(e.mediaType), 100))
}

// A kind is a kind of document.
type kind string

const (
	manifestKind kind = "manifest"
	indexKind    kind = "index"
	anyKind      kind = "" // of generic types
	otherKind    kind = "other"
)

func kindOf(t types.MediaType) kind {
	t = folded(t)
	switch {
	case slices.Contains(manifestTypes, t):
		return manifestKind
	case slices.Contains(indexTypes, t):
		return indexKind
	case slices.Contains(genericTypes, t):
		return anyKind
	}
	return otherKind
}

func folded(t types.MediaType) types.MediaType { return types.MediaType(strings.ToLower(string(t))) }

// checkConfigType says whether a config can be one of an image.
func checkConfigType(t types.MediaType) error {
	if slices.Contains(configTypes, folded(t)) || kindOf(t) == anyKind {
		return nil
	}
	return &notImageError{"config", t}
}

// checkLayerType says whether a layer can be a tar archive.
func checkLayerType(t types.MediaType) error {
	text := string(folded(t))
	isPrefix := func(prefix string) bool { return strings.HasPrefix(text, prefix) }
	switch {
	case strings.HasSuffix(text, "+encrypted"):
		return fmt.Errorf("unsupported media type %q of a layer: it is encrypted; decrypt the image first, as skopeo copy --decryption-key does", line(text, 100))
	case slices.ContainsFunc(layerPrefixes, isPrefix) || kindOf(t) == anyKind:
		return nil
	}
	return &notImageError{"layer", t}
}

// isForeign says that a registry need not have the layer.
func isForeign(t types.MediaType) bool {
	text := string(folded(t))
	return strings.Contains(text, ".nondistributable.") || strings.Contains(text, ".foreign.")
}

// mediaType is the media type of a Content-Type header.
func mediaType(header string) types.MediaType {
	t, _, err := mime.ParseMediaType(header)
	if err != nil {
		return types.MediaType(header)
	}
	return types.MediaType(t)
}
