package images

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestMain(m *testing.M) { os.Exit(testhost.Run(m)) }

// content is the content of the file of a test's image.
const content = "the content of the image"

// pull adds an image with one layer.
func pull(t *testing.T, k *Keeper, layer []byte, digest string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(path, layer, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := k.AddLayer(t.Context(), User{}, digest, f); err != nil {
		t.Fatal(err)
	}
	config := fmt.Appendf(nil, `{"rootfs":{"type":"layers","diff_ids":[%q]}}`, digest)
	if _, err := k.AddImage(t.Context(), User{}, protocol.AddImage{Reference: "docker.io/library/app:latest", Config: config}); err != nil {
		t.Fatal(err)
	}
}

// fileIn uses the image, and reads its file.
func fileIn(t *testing.T, k *Keeper) string {
	t.Helper()
	root, err := k.Use(t.Context(), 0, "app", "box")
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer root.Tree.Close()
	fd, err := unix.Openat(int(root.Tree.Fd()), "file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "file")
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A mount stays for a while after its last use. It has the files that were damaged.
func TestAnImageThatIsPulledAgainIsMountedAnew(t *testing.T) {
	testhost.NeedRoot(t, "a mount of an image")
	dir := t.TempDir()
	k := New(dir)
	defer k.Close()
	layer, digest := testhost.Layer(t, content)
	pull(t, k, layer, digest)
	path := filepath.Join(dir, "layers", digest[len("sha256:"):], "tar")
	damaged := bytes.Replace(layer, []byte(content), bytes.ToUpper([]byte(content)), 1)
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, damaged, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := fileIn(t, k); got == content {
		t.Fatal("the damage is not seen")
	}
	if err := k.Verify(t.Context(), 0, "app"); !errors.Is(err, fault.ErrDamaged) {
		t.Errorf("a check: %v", err)
	}
	pull(t, k, layer, digest)
	if got := fileIn(t, k); got != content {
		t.Errorf("after a pull the file has %q", got)
	}
}
