package inflate_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/sandbox-runtime/sandbox-runtime/images/inflate"
)

// archive is a tar archive of a few kilobytes, or more.
func archive(t testing.TB, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "a", Mode: 0o644, Size: int64(size)}); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, size)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range content {
		content[i] = byte(r.IntN(16))
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte, options ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, options...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestFormatsAreRecognised(t *testing.T) {
	a := archive(t, 300_000)
	half := len(a) / 2
	skippable := []byte{0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'x', 'y', 'z'}
	for name, src := range map[string][]byte{
		"plain":                        a,
		"gzip":                         gzipped(t, a),
		"gzip of two members":          append(gzipped(t, a[:half]), gzipped(t, a[half:])...),
		"gzip with an empty member":    append(gzipped(t, nil), gzipped(t, a)...),
		"gzip with zeros behind":       append(gzipped(t, a), make([]byte, 100_000)...),
		"zstd":                         zstded(t, a),
		"zstd with a checksum":         zstded(t, a, zstd.WithEncoderCRC(true)),
		"zstd of two frames":           append(zstded(t, a[:half]), zstded(t, a[half:])...),
		"zstd with a skippable frame":  append(skippable, zstded(t, a)...),
		"zstd before a skippable one":  append(zstded(t, a), skippable...),
		"zstd with a window of 32 MiB": zstded(t, a, zstd.WithWindowSize(32<<20)),
	} {
		for kind, r := range map[string]io.Reader{"whole": bytes.NewReader(src), "bytes": iotest.OneByteReader(bytes.NewReader(src))} {
			t.Run(name+" in "+kind, func(t *testing.T) {
				var out bytes.Buffer
				n, err := inflate.Copy(t.Context(), &out, r, int64(len(a)))
				if err != nil || n != int64(len(a)) || !bytes.Equal(out.Bytes(), a) {
					t.Errorf("got %d bytes of %d, %v", n, len(a), err)
				}
			})
		}
	}
}

func TestAnEmptyArchiveIsAnArchive(t *testing.T) {
	for name, src := range map[string][]byte{"nothing": nil, "zeros": make([]byte, 1024), "compressed": gzipped(t, nil)} {
		t.Run(name, func(t *testing.T) {
			if _, err := inflate.Copy(t.Context(), io.Discard, bytes.NewReader(src), 1<<20); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFaultyLayersAreRefused(t *testing.T) {
	a := archive(t, 100_000)
	z, zz := gzipped(t, a), zstded(t, a, zstd.WithEncoderCRC(true))
	changed := func(b []byte, at int) []byte {
		c := bytes.Clone(b)
		c[at] ^= 0x55
		return c
	}
	tests := map[string]struct {
		src  []byte
		want string
	}{
		"gzip truncated":             {z[:len(z)/2], "truncated"},
		"gzip truncated in its end":  {z[:len(z)-3], "truncated"},
		"gzip of a header":           {z[:5], "truncated"},
		"gzip with a tail":           {append(bytes.Clone(z), "a long tail"...), "other data after its end"},
		"gzip with zeros, then more": {append(append(bytes.Clone(z), make([]byte, 512)...), 'x'), "other data after its end"},
		"gzip with zeros and gzip":   {append(append(bytes.Clone(z), 0), z...), "other data after its end"},
		"gzip with a short tail":     {append(bytes.Clone(z), 'x'), "truncated"},
		"gzip with a wrong checksum": {changed(z, len(z)-6), "damaged"},
		"gzip damaged":               {changed(z, len(z)/2), ""},
		"zstd truncated":             {zz[:len(zz)/2], "truncated"},
		"zstd of a magic number":     {zz[:4], "truncated"},
		"zstd with a tail":           {append(bytes.Clone(zz), "long tail"...), "other data after its end"},
		"zstd with a short tail":     {append(bytes.Clone(zz), 'x'), "truncated"},
		"zstd damaged":               {changed(zz, len(zz)/2), ""},
		"zstd with a large window":   {zstded(t, bytes.Repeat(a, 500), zstd.WithWindowSize(64<<20)), "window of more than 32 MiB"},
		"xz":                         {append([]byte("\xfd7zXZ\x00"), make([]byte, 600)...), "compressed by xz, not by gzip or zstd; decompress it first, as with: xz -dc"},
		"bzip2":                      {[]byte("BZh91AY&SY"), "compressed by bzip2"},
		"text":                       {[]byte(strings.Repeat("text ", 300)), "neither a tar archive nor"},
		"some bytes":                 {[]byte("short"), "neither a tar archive nor"},
		"changed header":             {changed(a, 3), "neither a tar archive nor"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := inflate.Copy(t.Context(), io.Discard, bytes.NewReader(test.src), 1<<40)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// zeros is an endless stream.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestBombsEndAtTheLimit(t *testing.T) {
	bomb := func(w io.WriteCloser) {
		if _, err := io.CopyN(w, zeros{}, 256<<20); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var z, zz bytes.Buffer
	bomb(gzip.NewWriter(&z))
	w, err := zstd.NewWriter(&zz)
	if err != nil {
		t.Fatal(err)
	}
	bomb(w)
	for name, src := range map[string]io.Reader{"gzip": &z, "zstd": &zz, "plain": zeros{}} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			written := 0
			out := writerFunc(func(b []byte) (int, error) {
				if written += len(b); written > 1<<20 {
					return 0, errors.New("more than the limit was written")
				}
				return len(b), nil
			})
			n, err := inflate.Copy(t.Context(), out, src, 1<<20)
			runtime.ReadMemStats(&after)
			var large *inflate.TooLargeError
			if !errors.As(err, &large) || n > 1<<20 {
				t.Errorf("%d bytes, %v", n, err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 40<<20 {
				t.Errorf("%d MiB of memory", used>>20)
			}
		})
	}
}

func TestCopyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	if n, err := inflate.Copy(ctx, out, zeros{}, 1<<40); !errors.Is(err, context.Canceled) || n > 1<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestErrorsOfBothEndsAreReturned(t *testing.T) {
	full := errors.New("full")
	out := writerFunc(func([]byte) (int, error) { return 0, full })
	if _, err := inflate.Copy(t.Context(), out, zeros{}, 1<<40); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	for _, b := range [][]byte{nil, archive(t, 5000), gzipped(t, archive(t, 5000))[:300], zstded(t, archive(t, 5000))[:600]} {
		if _, err := inflate.Copy(t.Context(), io.Discard, io.MultiReader(bytes.NewReader(b), iotest.ErrReader(full)), 1<<40); !errors.Is(err, full) {
			t.Errorf("got %v", err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// FuzzCopy compares with the standard library where both read a format.
func FuzzCopy(f *testing.F) {
	a := archive(f, 3000)
	for _, seed := range [][]byte{a, gzipped(f, a), zstded(f, a), append(gzipped(f, a), gzipped(f, nil)...)} {
		f.Add(seed)
	}
	const limit = 1 << 20
	f.Fuzz(func(t *testing.T, src []byte) {
		var out bytes.Buffer
		n, err := inflate.Copy(t.Context(), &out, bytes.NewReader(src), limit)
		if int64(out.Len()) != n || n > limit {
			t.Fatalf("%d bytes were written, %d were told", out.Len(), n)
		}
		if len(src) < 2 || src[0] != 0x1f || src[1] != 0x8b {
			return
		}
		want, wantErr := inflateByStandardLibrary(src, limit)
		if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(out.Bytes(), want) {
			t.Fatalf("got %d bytes and %v, the standard library %d and %v", n, err, len(want), wantErr)
		}
	})
}
