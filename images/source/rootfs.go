package source

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
)

// rootImage is the image of a tar archive of a root file system, plain or compressed. It takes over the file.
func rootImage(ctx context.Context, f *os.File, want platform, maxBytes int64) (*Image, error) {
	image, err := readRoot(ctx, f, want, maxBytes)
	return withClose(image, err, f.Close)
}

func readRoot(ctx context.Context, f *os.File, want platform, maxBytes int64) (*Image, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	raw, inner := sha256.New(), sha256.New()
	head := &headWriter{}
	content := io.TeeReader(&stoppableReader{ctx.Err, io.NewSectionReader(f, 0, info.Size())}, raw)
	if _, err := inflate.Copy(ctx, io.MultiWriter(head, inner), content, maxBytes); err != nil {
		return nil, err
	}
	// The name of the first member may need more than its first block.
	_, err = tar.NewReader(bytes.NewReader(head.Bytes())).Next()
	if head.Len() < tarBlock || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("not a tar archive")
	}
	diffID := digestPrefix + hex.EncodeToString(inner.Sum(nil))
	digest := digestPrefix + hex.EncodeToString(raw.Sum(nil))
	return oneLayer(want, diffID, digest, f, info.Size())
}

// oneLayer is an image with one layer, which is the content of a file, and an empty config.
func oneLayer(p platform, diffID, digest string, f *os.File, size int64) (*Image, error) {
	config, err := emptyConfig(p, diffID)
	if err != nil {
		return nil, err
	}
	open := func(ctx context.Context) (io.ReadCloser, error) {
		content := &stoppableReader{ctx.Err, io.NewSectionReader(f, 0, size)}
		return newCheckedReader(content, digest, size, nil, nil), nil
	}
	image := &Image{Config: config, Layers: []Layer{{DiffID: diffID, Digest: digest, Size: size, open: open}}}
	image.Digest, err = madeDigest(config, image.Layers)
	image.Resolved = image.Digest
	return image, err
}

const tarBlock = 512

// headWriter keeps the first block of a tar archive.
type headWriter struct{ bytes.Buffer }

func (h *headWriter) Write(p []byte) (int, error) {
	if room := tarBlock - h.Len(); room > 0 {
		h.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
