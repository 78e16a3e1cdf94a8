package integration

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// An imageEntry is an entry of a layer that a test makes.
type imageEntry struct {
	tar.Header
	content string
}

func imageFile(name, content string) imageEntry {
	return imageEntry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(1_600_000_000, 0)}, content}
}

func imageDir(name string) imageEntry {
	return imageEntry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func imageSymlink(name, target string) imageEntry {
	return imageEntry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func imageLink(name, target string) imageEntry {
	return imageEntry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

func imageDevice(name string, kind byte, major, minor int64) imageEntry {
	return imageEntry{tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: major, Devminor: minor}, ""}
}

// withMode is the entry with another mode.
func (e imageEntry) withMode(mode int64) imageEntry {
	e.Mode = mode
	return e
}

// imageProgram is the file of a program of the host.
func imageProgram(t testing.TB, name, path string) imageEntry {
	t.Helper()
	return imageFile(name, content(t, path)).withMode(0o755)
}

// tarOfImage makes a layer.
func tarOfImage(t testing.TB, entries ...imageEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatalf("%.100q: %v", e.Name, err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// digestOfImage is the digest of a part of an image.
func digestOfImage(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

type object map[string]any

// configOfImage is a config for layers with these digests.
func configOfImage(t testing.TB, diffIDs ...string) []byte {
	t.Helper()
	return marshal(t, object{"architecture": runtime.GOARCH, "os": "linux", "config": object{}, "rootfs": object{"type": "layers", "diff_ids": diffIDs}})
}

// dockerArchive writes an image in the form of docker save, and returns the path.
func dockerArchive(t testing.TB, names []string, layers ...[]byte) string {
	t.Helper()
	var diffIDs, paths []string
	var entries []imageEntry
	for i, l := range layers {
		path := fmt.Sprintf("%d/layer.tar", i)
		diffIDs, paths = append(diffIDs, digestOfImage(l)), append(paths, path)
		entries = append(entries, imageFile(path, string(l)))
	}
	manifest := []object{{"Config": "config.json", "RepoTags": names, "Layers": paths}}
	entries = append(entries, imageFile("config.json", string(configOfImage(t, diffIDs...))), imageFile("manifest.json", string(marshal(t, manifest))))
	return imageArchive(t, tarOfImage(t, entries...))
}

// imageArchive is the path of a new file.
func imageArchive(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
