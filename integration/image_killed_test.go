package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
)

// A client that ends while it hands in a layer leaves nothing, and blocks no other call.
func TestImageClientGoesAway(t *testing.T) {
	h := newImageHost(t)
	l := h.listen(`{"peers":[]}`)
	c, other := l.client(), l.client()
	digest := "sha256:" + strings.Repeat("ab", 32)
	pull, err := c.PullImage(t.Context(), []string{digest})
	if err != nil || len(pull.Lacks) != 1 {
		t.Fatalf("%+v, %v", pull, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	added := make(chan error, 1)
	go func() { added <- c.AddImageLayer(context.Background(), digest, r, 0) }()
	if _, err := w.Write(make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the layer begins", func() bool { return len(h.drafts()) == 1 })
	if all, err := protocol.Ask(t.Context(), other, protocol.OpImages, protocol.None{}); err != nil || len(all) != 0 {
		t.Errorf("meanwhile: %v, %v", all, err)
	}
	c.Close()
	if err := <-added; !errors.Is(err, os.ErrClosed) && !strings.Contains(err.Error(), "closed") {
		t.Errorf("the call: %v", err)
	}
	r.Close()
	eventually(t, "nothing is left", func() bool { return len(h.drafts()) == 0 })
	eventually(t, "nobody reads the pipe", func() bool {
		_, err := w.Write(make([]byte, 100_000))
		return errors.Is(err, unix.EPIPE)
	})
	if removed, err := protocol.Ask(t.Context(), other, protocol.OpImagePrune, protocol.None{}); err != nil || len(removed.DeletedLayers) != 0 {
		t.Errorf("%+v, %v", removed, err)
	}
}

func TestImageLayerWithAnotherContent(t *testing.T) {
	h := newImageHost(t)
	c := h.listen(`{"peers":[]}`).client()
	for _, digest := range []string{"sha256:../../../../etc", "md5:00", "", "sha256:" + strings.Repeat("ab", 32)} {
		f, err := os.Open(filepath.Join(imageTree(t, "text"), "etc/word"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddImageLayer(t.Context(), digest, f, 0); err == nil {
			t.Errorf("%q was added", digest)
		}
		f.Close()
	}
	if _, err := c.PullImage(t.Context(), []string{"sha256:../../../../etc"}); err == nil {
		t.Error("a path was taken for a digest")
	}
	if _, err := c.AddImage(t.Context(), protocol.AddImage{Config: []byte(`{"rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("ab", 32) + `"]}}`)}, 0); err == nil {
		t.Error("an image without its layer was added")
	}
	if left := h.drafts(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// An import that is killed at any time leaves a store that the next one uses.
func TestImageImportKilled(t *testing.T) {
	h := newImageHost(t)
	dir := imageTree(t, strings.Repeat("a word\n", 3_000_000))
	begun := time.Now()
	id := h.good("import", dir, "--name", "first")
	whole := time.Since(begun)
	h.good("rm", "first")
	const kills = 12
	for n := range kills {
		r := start(t, h.image("import", dir, "--name", "killed"))
		time.Sleep(whole * time.Duration(n) / kills) // another moment each time
		r.kill()
		if all := h.list(); len(all) > 1 || len(all) == 1 && all[0].ID != id {
			t.Fatalf("%+v", all)
		}
	}
	if got := h.good("import", dir, "--name", "last"); got != id {
		t.Errorf("%s and %s", got, id)
	}
	h.good("verify")
	if left := h.drafts(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	h.good("rm", "last")
	if len(h.list()) == 1 { // a killed one was complete
		h.good("rm", "killed")
	}
	h.good("prune")
	if left, err := os.ReadDir(filepath.Join(h.data, "images/layers")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestImageImportOnAFullDisk(t *testing.T) {
	need(t, world())
	h := newImageHost(t)
	if err := os.MkdirAll(h.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", h.data, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(h.data, 0); err != nil {
			t.Error(err)
		}
	}()
	small := h.good("import", imageTree(t, "small"), "--name", "small")
	large := imageTree(t, strings.Repeat("large", 4<<20))
	for says, flags := range map[string][]string{"would be left free": nil, "no space left on device": {"--max-bytes", "1g"}} {
		got := run(t, h.image(append([]string{"import", "--quiet", large, "--name", "large"}, flags...)...))
		wantFailure(t, got, says)
		if !strings.Contains(got.stderr, "remove images") {
			t.Errorf("without a way out: %s", got.stderr)
		}
	}
	if left := h.drafts(); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	if all := h.list(); len(all) != 1 || all[0].ID != small {
		t.Errorf("%+v", all)
	}
	h.good("verify")
	h.good("rm", "small")
}
