package integration

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// An imageConfig is what an image says about the container it is for, as in
// the image specification's config.md.
type imageConfig struct {
	Entrypoint, Cmd, Env []string
	WorkingDir, User     string
}

// busyboxLayer is the busybox root as an uncompressed layer.
var busyboxLayer = sync.OnceValues(func() ([]byte, error) {
	root, err := busyboxRoot()
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	if err := tw.AddFS(os.DirFS(root)); err != nil {
		return nil, err
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
})

// image imports busybox as an image with a config, for the time of the test,
// and returns its name.
func (c *containerd) image(t *testing.T, name string, config imageConfig) string {
	t.Helper()
	reference := "example.com/" + name + ":test"
	c.importImage(t, "default", reference, config)
	t.Cleanup(func() { c.must(t, "image", "rm", "--sync", reference) })
	return reference
}

// importImage imports busybox as an image with a config.
func (c *containerd) importImage(t *testing.T, namespace, reference string, config imageConfig) {
	t.Helper()
	layer, err := busyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.client("--namespace", namespace, "image", "import", "-")
	cmd.Stdin = bytes.NewReader(savedImage(t, reference, config, layer))
	wantStatus(t, cmd, 0)
}

// savedImage is an image in the form of docker save.
func savedImage(t *testing.T, reference string, config any, layer []byte) []byte {
	t.Helper()
	type object map[string]any
	image := object{
		"architecture": runtime.GOARCH, "os": "linux", "config": config,
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	}
	manifest := []object{{"Config": "config.json", "RepoTags": []string{reference}, "Layers": []string{"layer.tar"}}}
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	for _, f := range []struct {
		name    string
		content []byte
	}{{"config.json", marshal(t, image)}, {"layer.tar", layer}, {"manifest.json", marshal(t, manifest)}} {
		if err := tw.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
