package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
)

// parallel is the number of layers of one image that are downloaded at the same time.
const parallel = 3

// remote is an image in a registry.
type remote struct {
	endpoints []*endpoint
	cache     *cache
	options   Options
	// slots has one place for each download that runs.
	slots chan struct{}

	// reporting makes one call of Options.Progress at a time.
	reporting sync.Mutex
}

func openRegistry(ctx context.Context, ref Reference, want platform, c *cache, o Options) (*Image, error) {
	o.patience = o.patience.filled()
	if o.Credentials == nil {
		o.Credentials = Files{}
	}
	o.Note = onceEach(o.Note)
	endpoints, err := newEndpoints(ref, o)
	if err != nil {
		return nil, err
	}
	r := &remote{endpoints: endpoints, cache: c, options: o, slots: make(chan struct{}, parallel)}
	image, err := r.image(ctx, ref, want)
	return withClose(image, err, r.close)
}

// onceEach tells a line once: a registry and its mirrors have one cause of a failure. The result can be called by several
// goroutines.
func onceEach(note func(string)) func(string) {
	var mu sync.Mutex
	told := map[string]bool{}
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		if note != nil && !told[line] {
			told[line] = true
			note(line)
		}
	}
}

func (r *remote) close() error {
	for _, e := range r.endpoints {
		e.close()
	}
	return r.cache.prune(time.Now())
}

func (r *remote) image(ctx context.Context, ref Reference, want platform) (*Image, error) {
	id := ref.Digest
	if id == "" {
		id = ref.Tag
	}
	digest, doc, err := r.resolve(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w%s", err, wayOut(err, ref.Host))
	}
	c := &chooser{from: r, want: want}
	var f *imageManifest
	if doc.isIndex() {
		f, err = c.chooseAmong(ctx, doc.Manifests)
	} else {
		f, err = c.chooseUnindexed(ctx, digest, doc)
	}
	if err != nil {
		return nil, err
	}
	image, err := newImage(f, r.options.MaxBytes, r.open)
	if err != nil {
		return nil, err
	}
	image.Resolved = digest
	return image, nil
}

// resolve fixes the digest of a tag or digest, and returns the document.
func (r *remote) resolve(ctx context.Context, id string) (string, *document, error) {
	digest := id
	var text []byte
	var said types.MediaType
	var err error
	if !validDigest(id) {
		err = r.each(ctx, func(e *endpoint) (err error) {
			// The question for the digest alone is free at registries that count pulls.
			if digest, err = e.head(ctx, id); err != nil {
				return err
			}
			if digest == "" {
				text, said, err = e.manifest(ctx, id)
			}
			return err
		})
	}
	if err == nil && digest != "" {
		text, said, err = r.document(ctx, descriptor{Digest: digest})
	}
	if err != nil {
		return "", nil, err
	}
	doc, err := parseDocument(text, said)
	return digestOf(text), doc, err
}

// each calls f for one endpoint after the other, until one succeeds.
func (r *remote) each(ctx context.Context, f func(e *endpoint) error) error {
	var failed []error
	for _, e := range r.endpoints {
		err := f(e)
		if err == nil {
			return nil
		}
		if len(r.endpoints) > 1 {
			err = fmt.Errorf("%s: %w", e.host, err)
		}
		if failed = append(failed, err); ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// document returns the document of a digest, from the cache or a registry.
func (r *remote) document(ctx context.Context, d descriptor) (text []byte, said types.MediaType, err error) {
	lock, err := r.cache.lock(ctx, d.Digest)
	if err != nil {
		return nil, "", err
	}
	defer lock.Close()
	text, err = r.cache.read(d.Digest, maxManifest)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, "", err
	}
	err = r.each(ctx, func(e *endpoint) (err error) {
		if text, said, err = e.manifest(ctx, d.Digest); err != nil {
			return err
		}
		if _, err := parseDocument(text, said, d.MediaType); err != nil {
			return err // another mirror may say something else
		}
		return r.cache.write(d.Digest, text)
	})
	return text, said, err
}

// config returns the config, from the cache or a registry.
func (r *remote) config(ctx context.Context, d descriptor) ([]byte, error) {
	return whole(r.get(ctx, d, func(int64) {}))
}

// get returns the content of an object, from the cache or a registry.
func (r *remote) get(ctx context.Context, d descriptor, report func(int64)) (io.ReadCloser, error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.slots }()
	fetch := func(ctx context.Context, offset int64) (body io.ReadCloser, start int64, err error) {
		err = r.each(ctx, func(e *endpoint) (err error) {
			body, start, err = e.blob(ctx, d.Digest, d.Size, offset)
			return err
		})
		return body, start, err
	}
	f, err := r.cache.get(ctx, download{digest: d.Digest, size: d.Size, fetch: fetch, report: report, patience: r.options.patience})
	if err != nil {
		return nil, err
	}
	return newCheckedReader(f, d.Digest, d.Size, func() error { return r.cache.remove(d.Digest) }, f.Close), nil
}

// open downloads a layer if it is not in the cache.
func (r *remote) open(ctx context.Context, index int, d descriptor) (io.ReadCloser, error) {
	return r.get(ctx, d, func(done int64) {
		if r.options.Progress != nil {
			r.reporting.Lock()
			defer r.reporting.Unlock()
			r.options.Progress(Progress{Layer: index, Done: done, Total: d.Size})
		}
	})
}

// newImage is the image of a manifest.
func newImage(f *imageManifest, maxBytes int64, open func(ctx context.Context, index int, d descriptor) (io.ReadCloser, error)) (*Image, error) {
	image := &Image{Digest: f.digest, Resolved: f.digest, Config: f.configText}
	for i, d := range f.doc.Layers {
		if d.Size > maxBytes {
			return nil, fmt.Errorf("layer %s has %d bytes, and at most %d are allowed; allow more with --max-bytes", d.Digest, d.Size, maxBytes)
		}
		image.Layers = append(image.Layers, Layer{DiffID: f.config.RootFS.DiffIDs[i], Digest: d.Digest, Size: d.Size,
			open: func(ctx context.Context) (io.ReadCloser, error) {
				content, err := open(ctx, i, d)
				if isForeign(d.MediaType) && isMissing(err) {
					err = fmt.Errorf("%w; the layer is marked as not for distribution: only registries with a copy have it, and its urls are not used", err)
				}
				return content, err
			}})
	}
	return image, nil
}

// Fetch downloads layers ahead, several at a time. Open then returns them at once.
func (i *Image) Fetch(ctx context.Context, layers ...Layer) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, l := range layers {
		group.Go(func() error {
			content, err := l.Open(ctx)
			if err != nil {
				return err
			}
			return content.Close()
		})
	}
	return group.Wait()
}
