package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// A layerContent writes the entries of a layer.
type layerContent func(w *tar.Writer) error

// busyboxLayer has busybox with the names true and sh.
func busyboxLayer(busybox string) layerContent {
	return func(w *tar.Writer) error {
		content, err := os.ReadFile(busybox)
		if err != nil {
			return err
		}
		err = errors.Join(writeDirectory(w, "bin"), writeEntry(w, "bin/busybox", 0o755, content))
		for _, name := range []string{"true", "sh"} {
			err = errors.Join(err, w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + name, Linkname: "busybox"}))
		}
		return err
	}
}

// fileLayer has files of a size below a directory, each hundred in a directory of its own. gzip makes about 0.4 of their
// size.
func fileLayer(dir string, files, size int) layerContent {
	return func(w *tar.Writer) error {
		words := newWords(dir)
		content := make([]byte, size)
		if err := writeDirectory(w, dir); err != nil {
			return err
		}
		for i := range files {
			if i%perDirectory == 0 {
				if err := writeDirectory(w, filepath.Dir(fileName(dir, i))); err != nil {
					return err
				}
			}
			words.fill(content)
			if err := writeEntry(w, fileName(dir, i), 0o644, content); err != nil {
				return err
			}
		}
		return nil
	}
}

// fileName is the name of a file of a fileLayer.
func fileName(dir string, i int) string { return fmt.Sprintf("%s/%d/%d", dir, i/perDirectory, i) }

func writeDirectory(w *tar.Writer, name string) error {
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
}

func writeEntry(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

// words make text that is the same in each run.
type words struct {
	random *rand.Rand
	all    [][]byte
}

func newWords(seed string) *words {
	sum := sha256.Sum256([]byte(seed))
	w := &words{random: rand.New(rand.NewChaCha8(sum))}
	for range 4096 {
		word := make([]byte, 2+w.random.IntN(10))
		for i := range word {
			word[i] = byte('a' + w.random.IntN(26))
		}
		w.all = append(w.all, append(word, ' '))
	}
	return w
}

func (w *words) fill(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, w.all[w.random.IntN(len(w.all))]):]
	}
}

// An ociDescriptor is a descriptor of image-spec v1.1 (descriptor.md).
type ociDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	imageTag     = "1"
)

// An imageLayout is an OCI layout with one image, which has the tag imageTag.
type imageLayout struct {
	dir      string
	manifest ociDescriptor
}

// makeLayout makes an image of these layers, which gzip compresses.
func makeLayout(dir string, layers ...layerContent) (*imageLayout, error) {
	l := &imageLayout{dir: dir}
	if err := os.MkdirAll(l.blobs(), 0o755); err != nil {
		return nil, err
	}
	manifest := struct {
		Version   int             `json:"schemaVersion"`
		MediaType string          `json:"mediaType"`
		Config    ociDescriptor   `json:"config"`
		Layers    []ociDescriptor `json:"layers"`
	}{Version: 2, MediaType: manifestType}
	diffIDs := []string{}
	for _, content := range layers {
		d, diffID, err := l.addLayer(content)
		if err != nil {
			return nil, err
		}
		manifest.Layers = append(manifest.Layers, d)
		diffIDs = append(diffIDs, diffID)
	}
	var err error
	manifest.Config, err = l.addJSON("application/vnd.oci.image.config.v1+json", map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	if err != nil {
		return nil, err
	}
	if l.manifest, err = l.addJSON(manifestType, manifest); err != nil {
		return nil, err
	}
	l.manifest.Annotations = map[string]string{"org.opencontainers.image.ref.name": imageTag}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []ociDescriptor{l.manifest}})
	return l, errors.Join(err,
		os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644),
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
}

func (l *imageLayout) blobs() string { return filepath.Join(l.dir, "blobs/sha256") }

func (l *imageLayout) addLayer(content layerContent) (d ociDescriptor, diffID string, err error) {
	f, err := os.CreateTemp(l.dir, "layer")
	if err != nil {
		return d, "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	outer, inner := sha256.New(), sha256.New()
	compressor := gzip.NewWriter(io.MultiWriter(f, outer))
	archive := tar.NewWriter(io.MultiWriter(compressor, inner))
	if err := errors.Join(content(archive), archive.Close(), compressor.Close()); err != nil {
		return d, "", err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return d, "", err
	}
	digest := hex.EncodeToString(outer.Sum(nil))
	d = ociDescriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: "sha256:" + digest, Size: size}
	return d, "sha256:" + hex.EncodeToString(inner.Sum(nil)), os.Rename(f.Name(), filepath.Join(l.blobs(), digest))
}

func (l *imageLayout) addJSON(mediaType string, value any) (d ociDescriptor, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return d, err
	}
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:])
	d = ociDescriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(text))}
	return d, os.WriteFile(filepath.Join(l.blobs(), digest), text, 0o644)
}

// archive makes an archive of the layout.
func (l *imageLayout) archive(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	return errors.Join(w.AddFS(os.DirFS(l.dir)), w.Close(), f.Close())
}

// read returns a small blob.
func (l *imageLayout) read(d ociDescriptor) ([]byte, error) {
	return os.ReadFile(filepath.Join(l.blobs(), strings.TrimPrefix(d.Digest, "sha256:")))
}
