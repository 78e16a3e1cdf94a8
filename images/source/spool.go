package source

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// maxWindow bounds the memory of a zstd decoder. RFC 8878 recommends that decoders support 8 MiB.
const maxWindow = 32 << 20

func isCompressed(r io.ReaderAt) (bool, error) {
	head := make([]byte, len(zstdMagic))
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	head = head[:n]
	return bytes.HasPrefix(head, gzipMagic) || bytes.HasPrefix(head, zstdMagic), nil
}

// inflate copies a plain, gzip or zstd stream. At most limit bytes may come out.
func inflate(ctx context.Context, dst io.Writer, src io.Reader, limit int64) error {
	in := bufio.NewReaderSize(&stoppable{ctx.Err, src}, 64<<10)
	head, err := in.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var out io.Reader = in
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("decompress gzip: %w", err)
		}
		out = z
	case bytes.HasPrefix(head, zstdMagic):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return fmt.Errorf("decompress zstd: %w", err)
		}
		defer z.Close()
		out = z
	}
	n, err := io.Copy(dst, io.LimitReader(out, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return err
}

// spool copies a stream, decompressed, to a file without a name.
func spool(ctx context.Context, c *cache, r io.Reader, limit int64) (*os.File, error) {
	f, err := c.temporary()
	if err != nil {
		return nil, err
	}
	if err := inflate(ctx, f, r, limit); err != nil {
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
