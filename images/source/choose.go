package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Bounds of the way to a manifest.
const (
	maxIndexes       = 4 // one in another
	maxDocuments     = 64
	maxDocumentBytes = 32 << 20
)

// documents are the documents and configs of an image, by their digests.
type documents interface {
	// document returns a document, and the media type that the place says.
	document(ctx context.Context, d descriptor) ([]byte, types.MediaType, error)
	config(ctx context.Context, d descriptor) ([]byte, error)
}

// imageManifest is the manifest of an image with its config. Entry is the digest in the outermost index.
type imageManifest struct {
	digest, entry string
	doc           *document
	config        *config
	configText    []byte
}

// chooser finds the manifest for a platform.
type chooser struct {
	from documents
	want platform
	// count and bytes are of the documents so far.
	count, bytes int64
	// exist are the platforms that were seen, and other is the last error about a manifest of something else.
	exist []string
	other error
}

// errNone says that an index has no image for the platform.
var errNone = errors.New("no image for the platform")

// chooseUnindexed returns a manifest that no index names. Its config alone has the platform.
func (c *chooser) chooseUnindexed(ctx context.Context, digest string, doc *document) (*imageManifest, error) {
	f, err := c.manifest(ctx, digest, doc)
	if err != nil {
		return nil, err
	}
	return f, f.config.check(c.want)
}

// chooseAmong returns the manifest of one of the entries of an index.
func (c *chooser) chooseAmong(ctx context.Context, entries []descriptor) (*imageManifest, error) {
	f, err := c.firstMatch(ctx, entries, maxIndexes)
	if !errors.Is(err, errNone) {
		return f, err
	}
	switch {
	case len(c.exist) > 0:
		return nil, fmt.Errorf("no image for %s; the platforms are %s%s", c.want, line(strings.Join(c.exist, ", "), 300), wayToPlatform(c.exist))
	case c.other != nil:
		return nil, c.other
	}
	return nil, fmt.Errorf("no image for %s, nor for any other platform", c.want)
}

// wayToPlatform is empty if no platform can be chosen.
func wayToPlatform(exist []string) string {
	isLinux := func(p string) bool { return strings.HasPrefix(p, "linux/") }
	if slices.ContainsFunc(exist, isLinux) {
		return ": choose one with --platform"
	}
	return ""
}

// firstMatch returns the manifest of the first candidate that leads to one.
func (c *chooser) firstMatch(ctx context.Context, entries []descriptor, depth int) (*imageManifest, error) {
	failed := errNone
	for _, d := range c.candidates(entries) {
		f, err := c.open(ctx, d, depth)
		switch {
		case errors.Is(err, errNone):
			continue
		case errors.As(err, new(*notImageError)):
			c.other = err
			if d.Platform != nil {
				failed = err
			}
			continue
		case err != nil:
			return nil, fmt.Errorf("manifest %s: %w", line(d.Digest, 100), err)
		}
		f.entry = d.Digest
		return f, nil
	}
	return nil, failed
}

// candidates are the entries for images that may be the wanted one, the best first. Those without a platform come last:
// their configs must be read for it.
func (c *chooser) candidates(entries []descriptor) []descriptor {
	var named, unnamed []descriptor
	ranks := map[*platform]int{}
	for _, d := range entries {
		switch {
		case !d.isImage():
		case d.Platform == nil || *d.Platform == (platform{}):
			d.Platform = nil
			unnamed = append(unnamed, d)
		default:
			c.noteExisting(*d.Platform)
			if rank, ok := d.Platform.rank(c.want); ok {
				ranks[d.Platform] = rank
				named = append(named, d)
			}
		}
	}
	slices.SortStableFunc(named, func(a, b descriptor) int { return cmp.Compare(ranks[a.Platform], ranks[b.Platform]) })
	return append(named, unnamed...)
}

func (c *chooser) noteExisting(p platform) {
	const most = 20
	if name := p.normalized().String(); p.OS != "" && len(c.exist) < most && !slices.Contains(c.exist, name) {
		c.exist = append(c.exist, name)
	}
}

// isImage says that an entry can lead to an image. Other entries are skipped (image-spec v1.1 image-index.md).
func (d descriptor) isImage() bool {
	return (d.Platform == nil || !d.Platform.isUnknown()) && d.Annotations.ReferenceType != "attestation-manifest" &&
		kindOf(d.MediaType) != otherKind && (d.ArtifactType == "" || checkConfigType(d.ArtifactType) == nil)
}

// open returns the manifest of an entry.
func (c *chooser) open(ctx context.Context, d descriptor, depth int) (*imageManifest, error) {
	doc, err := c.document(ctx, d)
	switch {
	case err != nil:
		return nil, err
	case doc.isIndex() && depth == 1:
		return nil, fmt.Errorf("more than %d indexes lead to the manifest", maxIndexes)
	case doc.isIndex():
		return c.firstMatch(ctx, doc.Manifests, depth-1)
	}
	f, err := c.manifest(ctx, d.Digest, doc)
	if err != nil || d.Platform != nil { // some builders write a wrong platform into the config
		return f, err
	}
	c.noteExisting(f.config.platform)
	if f.config.check(c.want) != nil {
		return nil, errNone
	}
	return f, nil
}

func (c *chooser) document(ctx context.Context, d descriptor) (*document, error) {
	if err := d.check(maxManifest); err != nil {
		return nil, err
	}
	if c.count++; c.count > maxDocuments || c.bytes > maxDocumentBytes {
		return nil, fmt.Errorf("more than %d manifests or %d bytes of manifests to choose from; pull one of them by its digest", maxDocuments, maxDocumentBytes)
	}
	text, said, err := c.from.document(ctx, d)
	if err != nil {
		return nil, err
	}
	c.bytes += int64(len(text))
	return parseDocument(text, said, d.MediaType)
}

func (c *chooser) manifest(ctx context.Context, digest string, doc *document) (*imageManifest, error) {
	text, err := c.from.config(ctx, *doc.Config)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	c.bytes += int64(len(text))
	config, err := parseConfig(text, len(doc.Layers))
	return &imageManifest{digest: digest, entry: digest, doc: doc, config: config, configText: text}, err
}
