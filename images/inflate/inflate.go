// Package inflate turns a layer of an image, as registries and archives have it, into
// the tar archive that its DiffID is the digest of.
//
// For all callers this is [Copy]. It recognises gzip, zstd and plain archives by
// their first bytes, not by a media type, which can lie. The result has a bound, and so
// has the memory. The package checks no digest, and looks at no entry of the archive.
package inflate

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// MaxWindow is the largest window of zstd that is accepted: that of zstd --ultra -22 without
// --long has 128 MiB, that of other levels at most 32 MiB. The window is held in memory.
const MaxWindow = 32 << 20

// TooLargeError says that a layer has more bytes than are allowed.
type TooLargeError struct{ Max int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the layer has more than %d bytes when inflated", e.Max)
}

// Copy writes the archive in src to dst and returns its size. It reads src to the end. If the archive is
// larger than limit, Copy writes so many bytes, and returns a [*TooLargeError]. Members of gzip and
// frames of zstd can follow each other, and zeros those of gzip, as for gzip(1). Anything else behind them is an
// error, and so is a truncated one.
//
// Copy looks at ctx between two blocks. It cannot interrupt a Read of src or a Write to dst.
func Copy(ctx context.Context, dst io.Writer, src io.Reader, limit int64) (n int64, err error) {
	in := bufio.NewReaderSize(&contextReader{ctx, src}, 64<<10)
	r, closeReader, err := open(in)
	if err != nil {
		return 0, fmt.Errorf("inflate: %w", err)
	}
	defer closeReader()
	b := make([]byte, 128<<10)
	for {
		got, err := r.Read(b)
		fits := min(int64(got), limit-n)
		if fits > 0 {
			if _, err := dst.Write(b[:fits]); err != nil {
				return n, fmt.Errorf("inflate: %w", err)
			}
			n += fits
		}
		if fits < int64(got) {
			return n, fmt.Errorf("inflate: %w", &TooLargeError{limit})
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return n, fmt.Errorf("inflate after %d bytes: %w", n, explain(err))
		}
	}
}

// explain tells a truncated stream from other faults.
func explain(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the layer is truncated: %w", err)
	case errors.Is(err, gzip.ErrHeader) || errors.Is(err, zstd.ErrMagicMismatch):
		return fmt.Errorf("the layer has other data after its end: %w", err)
	case errors.Is(err, gzip.ErrChecksum) || errors.As(err, new(flate.CorruptInputError)):
		return fmt.Errorf("the layer is damaged: %w", err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return fmt.Errorf("the layer needs a window of more than %d MiB; compress it without --long and --ultra: %w", MaxWindow>>20, err)
	}
	return err
}

// open recognises the format. The caller calls closeReader at the end.
func open(in *bufio.Reader) (r io.Reader, closeReader func(), err error) {
	closeReader = func() {}
	head, err := in.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, explain(err)
		}
		return &members{in: in, member: r}, closeReader, nil // its Close does no more than repeat the last error
	case isZstd(head):
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(MaxWindow))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	case isTar(head):
		return in, closeReader, nil
	case program(head) != "":
		return nil, nil, fmt.Errorf("the layer is compressed by %s, not by gzip or zstd; decompress it first, as with: %[1]s -dc", program(head))
	default:
		return nil, nil, errors.New("the layer is neither a tar archive nor compressed by gzip or zstd")
	}
}

// program is the program of a format that is recognised, but not read. It is empty for all others.
func program(head []byte) string {
	for _, f := range []struct{ magic, program string }{{"\xfd7zXZ\x00", "xz"}, {"BZh", "bzip2"}, {"\x5d\x00\x00", "lzma"}, {"\x04\x22\x4d\x18", "lz4"}} {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return f.program
		}
	}
	return ""
}

// isZstd says that it is a frame of zstd, or one that its readers skip (RFC 8878, 3.1.1 and 3.1.2).
func isZstd(head []byte) bool {
	skippable := len(head) >= 4 && head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18})
	return skippable || bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd})
}

// isTar says that it is a header with its checksum, or the end of an archive without entries.
func isTar(head []byte) bool {
	if len(head) < 512 {
		return len(head) == 0
	}
	const sumAt, sumEnd = 148, 156
	var sum, signed, want int64
	for i, c := range head {
		if sumAt <= i && i < sumEnd {
			c = ' '
		}
		sum, signed = sum+int64(c), signed+int64(int8(c))
	}
	field := bytes.Trim(head[sumAt:sumEnd], " \x00")
	if len(field) == 0 {
		return sum == 8*' ' // all zero
	}
	if _, err := fmt.Sscanf(string(field), "%o", &want); err != nil {
		return false
	}
	return want == sum || want == signed // old tars summed signed bytes
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (i *contextReader) Read(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(b)
}
