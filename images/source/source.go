package source

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
)

// Bounds of an image.
const (
	maxManifest = 4 << 20
	maxConfig   = 4 << 20
	maxLayers   = 1000
	// defaultMaxBytes bounds a layer, and an archive.
	defaultMaxBytes = 64 << 30
)

// Options are choices of the caller. The zero value reads images for this host, with the credential files
// of Docker and podman.
type Options struct {
	// Platform is OS/ARCHITECTURE[/VARIANT]. The default is linux and the architecture of this program.
	Platform string
	// Cache is the directory of downloads and temporary files. The default is in the user's cache directory.
	Cache string
	// Mirrors has, for a registry such as "docker.io", the HOST[:PORT][/PREFIX] of mirrors. They are asked in
	// order, before the registry itself.
	Mirrors map[string][]string
	// PlainHTTP are the HOST[:PORT] of registries and token servers that may be spoken to without TLS.
	PlainHTTP []string
	// TokenHosts are the HOST[:PORT] of token servers that may receive credentials of a registry on another site.
	TokenHosts []string
	// RootCAs are the trusted certificates. The default is the host's set.
	RootCAs *x509.CertPool
	// Credentials finds credentials. The default is Files. After an error of it the registry is asked without credentials.
	Credentials Credentials
	// Stdin is read for the reference "-".
	Stdin io.Reader
	// Note gets one line for each fault after which Open goes on, such as a helper that fails. Its calls do not overlap.
	Note func(line string)
	// Progress is called while layers are downloaded, never twice at the same time.
	Progress func(Progress)
	// MaxBytes bounds each layer and each archive. The default is 64 GiB, and for a copy of an archive or a directory in the
	// cache nine tenths of the free space.
	MaxBytes int64

	patience patience
}

// Progress is the state of the download of one layer.
type Progress struct {
	// Layer is the index of the layer in Image.Layers.
	Layer       int
	Done, Total int64
}

// Image is an open image. Its layers can be read at the same time.
type Image struct {
	// Reference names the image, with defaults filled in.
	Reference string
	// Digest is of the manifest, "sha256:HEX". A source without manifest has one that was made for the digest.
	Digest string
	// Resolved is the digest that the reference led to: of an index that has the manifest, or Digest.
	Resolved string
	// Names are the names that an archive of docker save claims for the image. The receiver must check them.
	Names []string
	// Config is the config as the image has it.
	Config []byte
	// Layers are in the order of their use, the lowest first.
	Layers []Layer

	close func() error
}

// Close releases files and connections, after all readers of layers are closed. It is safe to call twice.
func (i *Image) Close() error {
	if i.close == nil {
		return nil
	}
	err := i.close()
	i.close = nil
	return err
}

// Layer is one layer of an image.
type Layer struct {
	// DiffID is the digest of the uncompressed layer, as the config claims it. The receiver must check it.
	DiffID string
	// Digest and Size are of the layer as its reader returns it: plain, gzip or zstd.
	Digest string
	Size   int64

	open func(ctx context.Context) (io.ReadCloser, error)
}

// Open returns the layer. The reader fails at its end if digest or size are wrong. Open downloads the layer if
// it must; up to three layers of an image are downloaded at the same time.
func (l Layer) Open(ctx context.Context) (io.ReadCloser, error) {
	r, err := l.open(ctx)
	if err != nil {
		return nil, readable(fmt.Errorf("read layer %s: %w", l.Digest, err))
	}
	return r, nil
}

// Open opens the image of a reference. The caller must close the Image.
func Open(ctx context.Context, reference string, o Options) (*Image, error) {
	image, err := open(ctx, reference, o)
	if err != nil {
		return nil, readable(fmt.Errorf("open image %q: %w%s", reference, err, moreBytes(err)))
	}
	return image, nil
}

func open(ctx context.Context, reference string, o Options) (*Image, error) {
	ref, err := Parse(reference)
	if err != nil {
		return nil, err
	}
	want, err := parsePlatform(o.Platform)
	if err != nil {
		return nil, err
	}
	c, err := openCache(o.Cache)
	if err != nil {
		return nil, err
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes, c.sparing = defaultMaxBytes, true
	}
	image, err := openKind(ctx, ref, want, c, o)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	inner := image.close
	image.Reference = ref.String()
	image.close = func() error {
		return errors.Join(inner(), c.Close())
	}
	return image, nil
}

// withClose gives a new image the function that closes it. After an error it calls the function.
func withClose(image *Image, err error, closing func() error) (*Image, error) {
	if err != nil {
		return nil, errors.Join(err, closing())
	}
	image.close = closing
	return image, nil
}

func openKind(ctx context.Context, ref Reference, want platform, c *cache, o Options) (*Image, error) {
	switch ref.Kind {
	case Registry:
		return openRegistry(ctx, ref, want, c, o)
	case Layout:
		return openLayout(ctx, ref.Path, ref.Tag, want, o.MaxBytes)
	case Directory:
		return openDirectory(ctx, ref.Path, want, c, o)
	case Stdin:
		if o.Stdin == nil {
			return nil, errors.New("no standard input is given")
		}
		f, err := spool(ctx, c, o.Stdin, o.MaxBytes)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return openDetected(ctx, f, want, o)
	case LayoutArchive, DockerArchive, Root:
		f, err := os.Open(ref.Path)
		if err != nil {
			return nil, err
		}
		return openFile(ctx, f, ref, want, c, o)
	default:
		return nil, fmt.Errorf("unknown kind of reference %q", ref.Kind)
	}
}
