package index_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/images/index"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestMain(m *testing.M) { os.Exit(testhost.Run(m)) }

// item is an entry of an archive.
type item struct {
	tar.Header
	content string
}

// with changes an entry.
func (i item) with(change func(*tar.Header)) item {
	change(&i.Header)
	return i
}

func (i item) xattr(name, value string) item {
	records := map[string]string{"SCHILY.xattr." + name: value}
	for k, v := range i.PAXRecords {
		records[k] = v
	}
	i.PAXRecords = records
	return i
}

var someTime = time.Unix(1_600_000_000, 0)

func file(name, content string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: someTime}, content}
}

func dir(name string) item {
	return item{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o750, Uid: 7, Gid: 8, ModTime: someTime}, ""}
}

func symlink(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: someTime}, ""}
}

func link(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644, ModTime: someTime}, ""}
}

func device(name string, kind byte, major, minor int64) item {
	return item{tar.Header{Typeflag: kind, Name: name, Mode: 0o660, Devmajor: major, Devminor: minor, ModTime: someTime}, ""}
}

// layer writes an archive.
func layer(t testing.TB, items ...item) *os.File {
	t.Helper()
	f := newFile(t)
	w := tar.NewWriter(f)
	for _, i := range items {
		h := i.Header
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%s: %v", i.Name, err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

func newFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func build(t testing.TB, layers ...*os.File) (*os.File, index.Summary) {
	t.Helper()
	out := newFile(t)
	s, err := index.Build(context.Background(), layers, out, index.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return out, s
}

// refused builds an index and returns the reason of the refusal.
func refused(t testing.TB, l index.Limits, layers ...*os.File) error {
	t.Helper()
	_, err := index.Build(context.Background(), layers, newFile(t), l)
	if err == nil {
		t.Fatal("the index was built")
	}
	if strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 400 {
		t.Errorf("the error is not one short line: %q", err)
	}
	return err
}

// mount mounts an index with its layers, attached nowhere, and returns a path to it.
func mount(t testing.TB, image *os.File, layers ...*os.File) string {
	t.Helper()
	testhost.NeedRoot(t, "mount EROFS")
	if reason := testhost.LinuxBefore(t, 6, 12); reason != "" {
		t.Skip(reason + ": it mounts no EROFS from a file")
	}
	var options [][2]string
	for _, l := range layers {
		options = append(options, [2]string{"device", self(l)})
	}
	c, err := fsmount.Open("erofs", self(image), options...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fd, err := c.Mount()
	if err != nil {
		t.Fatal(err)
	}
	m := os.NewFile(uintptr(fd), "mount")
	t.Cleanup(func() { m.Close() })
	return self(m) + "/."
}

func self(f *os.File) string {
	return filepath.Join("/proc", strconv.Itoa(os.Getpid()), "fd", fmt.Sprint(f.Fd()))
}

// mounted builds and mounts.
func mounted(t testing.TB, layers ...*os.File) string {
	t.Helper()
	image, _ := build(t, layers...)
	return mount(t, image, layers...)
}

// content is that of a file, or the reason why there is none.
func content(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
