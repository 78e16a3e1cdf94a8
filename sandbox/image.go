package sandbox

import (
	"context"
	"crypto/x509"
	"io"

	imagesource "github.com/sandbox-runtime/sandbox-runtime/images/source"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Images of this user at a launcher; package spec describes them in full.
type (
	// Image is an image that this user can use.
	Image = spec.Image
	// ImageReference is a name of an image.
	ImageReference = spec.ImageReference
	// RemovedImages tells the effect of a removal.
	RemovedImages = spec.RemovedImages
	// ImageCredential is a user name and password for a registry, or a token.
	ImageCredential = imagesource.Credential
	// ImageCredentials finds credentials for registries.
	ImageCredentials = imagesource.Credentials
)

// PullOptions are the choices of a pull. The zero value is right for most pulls.
type PullOptions struct {
	// Name is the name that the image gets. Empty: an image of a registry gets its name there, one of an archive of
	// docker save the names in the archive, and an image of another place none.
	Name string
	// Platform is OS/ARCHITECTURE[/VARIANT]. Empty: linux and the architecture of this program.
	Platform string
	// Mirrors has, for a registry such as "docker.io", the HOST[:PORT][/PREFIX] of mirrors, which are asked
	// first, in order.
	Mirrors map[string][]string
	// PlainHTTP are the HOST[:PORT] of registries without TLS. Loopback addresses need no entry.
	PlainHTTP []string
	// TokenHosts are the HOST[:PORT] of token servers that may receive credentials of a registry on another site.
	TokenHosts []string
	// RootCAs are the trusted certificates. Nil: the host's set.
	RootCAs *x509.CertPool
	// Credentials finds credentials. Nil: the files of Docker and podman. After an error of it the registry is asked
	// without credentials, and Note gets the error.
	Credentials ImageCredentials
	// Cache is the directory of downloads. Empty: one in the user's cache directory. All pulls with one
	// directory share their downloads.
	Cache string
	// MaxBytes bounds each layer, uncompressed, and each archive with an image. A launcher allows at most 32 GiB, and can have
	// a lower bound for this user. Zero: none of them takes more than nine tenths of the free space of its file system, here
	// and at a launcher that has no bound for this user.
	MaxBytes int64
	// Stdin is read for the reference "-".
	Stdin io.Reader
	// Note gets one line for each fault after which the pull goes on, such as a credential helper that does not answer.
	// Nil: only the error of a pull that fails for this reason tells it.
	Note func(line string)
	// Progress is told the progress of each layer, by one goroutine at a time. It should return soon.
	Progress func(ImageProgress)
}

// ImageProgress is the progress of one layer.
type ImageProgress struct {
	// Layer is the digest of the layer as its source has it, and Index the place of the layer in the image.
	Layer string
	Index int
	State LayerState
	// Done and Total are bytes of a download or an addition.
	Done, Total int64
}

// LayerState is the state of a layer during a pull.
type LayerState string

// The states of a layer.
const (
	// LayerExists: the user has the layer already. LayerWaiting is the first state of all others.
	LayerExists      LayerState = "exists"
	LayerWaiting     LayerState = "waiting"
	LayerDownloading LayerState = "downloading"
	// LayerAdding: the layer is on its way from this program to the launcher.
	LayerAdding LayerState = "adding"
	LayerAdded  LayerState = "added"
)

// PullImage reads an image from a registry, an archive, an OCI layout or a directory, and gives it to the launcher. The
// launcher keeps the image for this user. This program reads, with its own rights and credentials. Layers that the user
// has already are not read. If ctx ends, complete layers stay for the next pull.
//
// The spellings of a reference are those of package images/source: debian:12, quay.io/org/name@sha256:HEX, oci:DIR,
// oci-archive:FILE, docker-archive:FILE, rootfs:FILE, dir:DIR, and - for Stdin.
//
// Errors: ErrRefused if the launcher's rules do not allow images or these bytes, *ConfigError, ErrUnavailable.
func (m *Manager) PullImage(ctx context.Context, reference string, o PullOptions) (Image, error) {
	return preferred(m, "images", func(k ImageKeeper) (Image, error) { return k.PullImage(ctx, reference, o) })
}

// Images are the images of this user, the last created first, without layers and configs.
func (m *Manager) Images(ctx context.Context) ([]Image, error) {
	return preferred(m, "images", func(k ImageKeeper) ([]Image, error) { return k.Images(ctx) })
}

// Image describes an image, with its layers and its config. The name is as in docker run: busybox, name:tag, name@digest,
// an id, or the beginning of an id.
//
// Errors: ErrNotFound.
func (m *Manager) Image(ctx context.Context, name string) (Image, error) {
	return preferred(m, "images", func(k ImageKeeper) (Image, error) { return k.Image(ctx, name) })
}

// RemoveImage removes a name of an image, and the image with its last name. By its id, RemoveImage removes an image
// that has at most one name.
//
// Errors: ErrNotFound, ErrBusy if a sandbox or a snapshot uses the image.
func (m *Manager) RemoveImage(ctx context.Context, name string) (RemovedImages, error) {
	return preferred(m, "images", func(k ImageKeeper) (RemovedImages, error) { return k.RemoveImage(ctx, name) })
}

// PruneImages removes the images of this user that have no name and that nothing uses, and layers of interrupted pulls.
func (m *Manager) PruneImages(ctx context.Context) (RemovedImages, error) {
	return preferred(m, "images", func(k ImageKeeper) (RemovedImages, error) { return k.PruneImages(ctx) })
}

// VerifyImage reads all of an image at the launcher, and compares it with its digests. A damaged image can be pulled
// again.
//
// Errors: ErrNotFound, ErrDamaged.
func (m *Manager) VerifyImage(ctx context.Context, name string) error {
	k, err := preferredAbility[ImageKeeper](m, "images")
	if err != nil {
		return err
	}
	return k.VerifyImage(ctx, name)
}
