package launcher

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A blank serves requests for its image under any name, of its user only, as long as the image has the same files.
func TestAKindHasOneImage(t *testing.T) {
	kind := func(name, path string, from Sources, image part.ImageRoot) string {
		t.Helper()
		c, err := part.Completed(spec.Config{Image: name}, spec.StorageMemory)
		if err != nil {
			t.Fatal(err)
		}
		wanted, reason := templateOf(protocol.Create{Config: c, Path: path, Home: path}, from, image)
		if reason != "" {
			t.Fatal(reason)
		}
		k, err := wanted.kind()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	one := part.ImageRoot{ID: "sha256:1", Files: "1"}
	first := kind("app", "/bin", Sources{}, one)
	if got := kind("other", "/usr/bin", Sources{}, one); got != first {
		t.Errorf("another name and PATH: %s, not %s", got, first)
	}
	for what, got := range map[string]string{
		"another user":  kind("app", "/bin", Sources{UID: 4242}, one),
		"a moved name":  kind("app", "/bin", Sources{}, part.ImageRoot{ID: "sha256:2", Files: "2"}),
		"pulled again":  kind("app", "/bin", Sources{}, part.ImageRoot{ID: "sha256:1", Files: "3"}),
		"without image": kind("", "/bin", Sources{}, part.ImageRoot{}),
	} {
		if got == first {
			t.Errorf("%s: the kind is the same", what)
		}
	}
}
