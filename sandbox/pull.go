package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/images/name"
	imagesource "github.com/sandbox-runtime/sandbox-runtime/images/source"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// A pull reads an image and hands it to a launcher.
type pull struct {
	client *protocol.Client
	image  *imagesource.Image
	names  []string // full
	// maxBytes is PullOptions.MaxBytes.
	maxBytes int64

	// mu is held while progress is called.
	mu       sync.Mutex
	progress func(ImageProgress)
}

// PullImage implements [ImageKeeper].
func (p *isolatedProvider) PullImage(ctx context.Context, text string, o PullOptions) (_ Image, err error) {
	chosen, err := chosenName(text, o.Name)
	if err != nil {
		return Image{}, fault.Refusal(err)
	}
	if o.MaxBytes < 0 {
		return Image{}, fault.Refusal(fmt.Errorf("invalid MaxBytes %d: use a positive number", o.MaxBytes))
	}
	client, err := p.connection(ctx)
	if err != nil {
		return Image{}, err
	}
	s := &pull{client: client, progress: o.Progress, maxBytes: o.MaxBytes}
	if s.image, err = imagesource.Open(ctx, text, s.options(o)); err != nil {
		return Image{}, endedBy(ctx, err)
	}
	defer func() { err = errors.Join(err, s.image.Close()) }()
	if s.names, err = namesOf(chosen, s.image); err != nil {
		return Image{}, fault.Refusal(err)
	}
	image, err := s.run(ctx)
	return image, endedBy(ctx, err)
}

// maxNames bounds the names that an archive gives an image.
const maxNames = 100

// namesOf are the full names that an image gets: the chosen one, or else those of its archive, as docker load
// gives them.
func namesOf(chosen string, image *imagesource.Image) ([]string, error) {
	if chosen != "" {
		return []string{chosen}, nil
	}
	if len(image.Names) > maxNames {
		return nil, fmt.Errorf("the archive has %d names for the image; at most %d are allowed: choose a name", len(image.Names), maxNames)
	}
	var all []string
	for _, text := range image.Names {
		n, err := name.Parse(text)
		if err == nil && n.Digest != "" {
			err = errors.New("it has a digest")
		}
		if err != nil {
			return nil, fmt.Errorf("the archive has an invalid name for the image: %w; choose a name", err)
		}
		if full := n.Full(); !slices.Contains(all, full) {
			all = append(all, full)
		}
	}
	return all, nil
}

// chosenName is the full name that the caller chooses for an image: by the option, or by a reference to a registry.
func chosenName(text, chosen string) (string, error) {
	if chosen == "" {
		r, err := imagesource.Parse(text)
		if err != nil || r.Kind != imagesource.Registry {
			return "", err
		}
		chosen = text
	}
	n, err := name.Parse(chosen)
	if err != nil {
		return "", err
	}
	return n.Full(), nil
}

func (s *pull) options(o PullOptions) imagesource.Options {
	return imagesource.Options{
		Platform: o.Platform, Cache: o.Cache, Mirrors: o.Mirrors, PlainHTTP: o.PlainHTTP, TokenHosts: o.TokenHosts,
		RootCAs: o.RootCAs, Credentials: o.Credentials, Stdin: o.Stdin, Note: o.Note, MaxBytes: o.MaxBytes,
		Progress: func(p imagesource.Progress) { s.reportProgress(p.Layer, LayerDownloading, p.Done, p.Total) },
	}
}

func (s *pull) reportProgress(layer int, state LayerState, done, total int64) {
	if s.progress == nil || s.image == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress(ImageProgress{Layer: s.image.Layers[layer].Digest, Index: layer, State: state, Done: done, Total: total})
}

// parallelLayers is how many layers are handed in at a time.
const parallelLayers = 3

func (s *pull) run(ctx context.Context) (Image, error) {
	diffIDs := []string{} // in JSON no null
	for _, l := range s.image.Layers {
		diffIDs = append(diffIDs, l.DiffID)
	}
	held, err := s.client.PullImage(ctx, diffIDs)
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = held.Close() }() // nothing was written to it
	group, adding := errgroup.WithContext(ctx)
	group.SetLimit(parallelLayers)
	for _, layer := range s.missing(held.Lacks) {
		group.Go(func() error { return s.add(adding, layer) })
	}
	if err := group.Wait(); err != nil {
		return Image{}, err
	}
	add := protocol.AddImage{Digest: s.image.Resolved, Config: s.image.Config}
	if len(s.names) == 0 {
		return s.client.AddImage(ctx, add, s.maxBytes)
	}
	var image Image
	for _, add.Reference = range s.names {
		if image, err = s.client.AddImage(ctx, add, s.maxBytes); err != nil {
			return Image{}, err
		}
	}
	return image, nil
}

// missing are the layers to hand in. An image can have a layer several times.
func (s *pull) missing(lacks []string) (layers []int) {
	wanted := map[string]bool{}
	for _, diffID := range lacks {
		wanted[diffID] = true
	}
	for i, l := range s.image.Layers {
		if !wanted[l.DiffID] {
			s.reportProgress(i, LayerExists, 0, 0)
			continue
		}
		wanted[l.DiffID] = false
		s.reportProgress(i, LayerWaiting, 0, 0)
		layers = append(layers, i)
	}
	return layers
}

// add hands in a layer through a pipe. The content is checked at its end: a wrong one ends the call before the end of the
// pipe.
func (s *pull) add(ctx context.Context, layer int) error {
	l := s.image.Layers[layer]
	content, err := l.Open(ctx)
	if err != nil {
		return err
	}
	defer content.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	enlarge(w)
	adding, cancel := context.WithCancel(ctx)
	defer cancel()
	copied := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{&counter{w, 0, func(n int64) { s.reportProgress(layer, LayerAdding, n, l.Size) }}},
			struct{ io.Reader }{content}, make([]byte, pipeSize))
		if err != nil {
			cancel()
		}
		w.Close()
		copied <- err
	}()
	err = s.client.AddImageLayer(adding, l.DiffID, r, s.maxBytes)
	r.Close() // ends the copy if the launcher did not read all
	if copyErr := <-copied; copyErr != nil && !errors.Is(copyErr, unix.EPIPE) {
		return copyErr
	}
	if err == nil {
		s.reportProgress(layer, LayerAdded, l.Size, l.Size)
	}
	return err
}

// A counter tells how many bytes were written.
type counter struct {
	w    io.Writer
	n    int64
	tell func(n int64)
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.tell(c.n)
	return n, err
}

// Images implements [ImageKeeper].
func (p *isolatedProvider) Images(ctx context.Context) ([]Image, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) ([]Image, error) {
		return protocol.Ask(ctx, c, protocol.OpImages, protocol.None{})
	})
}

// Image implements [ImageKeeper].
func (p *isolatedProvider) Image(ctx context.Context, name string) (Image, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) (Image, error) { return c.Image(ctx, name) })
}

// RemoveImage implements [ImageKeeper].
func (p *isolatedProvider) RemoveImage(ctx context.Context, name string) (RemovedImages, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) (RemovedImages, error) {
		return protocol.Ask(ctx, c, protocol.OpImageRemove, name)
	})
}

// PruneImages implements [ImageKeeper].
func (p *isolatedProvider) PruneImages(ctx context.Context) (RemovedImages, error) {
	return askLauncher(ctx, p, func(c *protocol.Client) (RemovedImages, error) {
		return protocol.Ask(ctx, c, protocol.OpImagePrune, protocol.None{})
	})
}

// VerifyImage implements [ImageKeeper].
func (p *isolatedProvider) VerifyImage(ctx context.Context, name string) error {
	_, err := askLauncher(ctx, p, func(c *protocol.Client) (protocol.None, error) {
		return protocol.Ask(ctx, c, protocol.OpImageVerify, name)
	})
	return err
}
