package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
)

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

func isCompressed(r io.ReaderAt) (bool, error) {
	head := make([]byte, len(zstdMagic))
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	head = head[:n]
	return bytes.HasPrefix(head, gzipMagic) || bytes.HasPrefix(head, zstdMagic), nil
}

// spool copies a stream, decompressed, to a file without a name.
func spool(ctx context.Context, c *cache, r io.Reader, limit int64) (*os.File, error) {
	f, err := c.temporary()
	if err != nil {
		return nil, err
	}
	w, err := c.writer(f)
	if err == nil {
		_, err = inflate.Copy(ctx, w, r, limit)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// plain returns a file that can be read at any offset. An archive with images is decompressed for that; a root stays
// compressed, since its bytes are the layer. It takes over the file.
func plain(ctx context.Context, f *os.File, kind Kind, c *cache, limit int64) (*os.File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if info.IsDir() {
		return nil, errors.Join(errors.New("the path is a directory"), f.Close())
	}
	copied := !info.Mode().IsRegular() // such as a pipe
	if !copied && kind != Root {
		if copied, err = isCompressed(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if !copied {
		return f, nil
	}
	out, err := spool(ctx, c, f, limit)
	return out, errors.Join(err, f.Close())
}

func hashOf(r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return "", err
	}
	return digestPrefix + hex.EncodeToString(sum.Sum(nil)), nil
}
