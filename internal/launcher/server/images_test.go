package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/images"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// withImages is a world with a store of images.
func withImages(t *testing.T, rules ...Rule) (w *world, dir string) {
	t.Helper()
	w, dir = newWorld(t, rules...), filepath.Join(t.TempDir(), "images")
	w.core.keeper = images.New(dir)
	return w, dir
}

// file has a content, for a client to hand in.
func file(t *testing.T, content []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func configOf(digest string) []byte {
	return fmt.Appendf(nil, `{"rootfs":  {"type":"layers","diff_ids":[%q]}}`, digest)
}

func TestImagesNeedARule(t *testing.T) {
	w, dir := withImages(t, Rule{User: "1001"})
	c := w.client(t, 1001)
	ctx := t.Context()
	_, digest := testhost.Layer(t, "content")
	for name, call := range map[string]func() error{
		"pull":    func() error { _, err := c.PullImage(ctx, []string{digest}); return err },
		"layer":   func() error { return c.AddImageLayer(ctx, digest, file(t, nil), 0) },
		"add":     func() error { _, err := c.AddImage(ctx, protocol.AddImage{Config: configOf(digest)}, 0); return err },
		"list":    func() error { _, err := protocol.Ask(ctx, c, protocol.OpImages, protocol.None{}); return err },
		"inspect": func() error { _, err := c.Image(ctx, "x"); return err },
		"remove":  func() error { _, err := protocol.Ask(ctx, c, protocol.OpImageRemove, "x"); return err },
		"prune":   func() error { _, err := protocol.Ask(ctx, c, protocol.OpImagePrune, protocol.None{}); return err },
		"verify":  func() error { _, err := protocol.Ask(ctx, c, protocol.OpImageVerify, "x"); return err },
	} {
		if err := call(); !errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), `"images": "10g"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a refused call has made the store")
	}
}

func TestAnImageIsAddedListedAndRemoved(t *testing.T) {
	w, _ := withImages(t, Rule{User: "1001", Images: 1 << 20}, Rule{User: "1002", Images: 1 << 20})
	c, other := w.client(t, 1001), w.client(t, 1002)
	ctx := t.Context()
	layer, digest := testhost.Layer(t, "content")
	pull, err := c.PullImage(ctx, []string{digest})
	if err != nil || len(pull.Lacks) != 1 {
		t.Fatalf("%+v, %v", pull, err)
	}
	if err := c.AddImageLayer(ctx, digest, file(t, layer), 0); err != nil {
		t.Fatal(err)
	}
	if removed, err := protocol.Ask(ctx, c, protocol.OpImagePrune, protocol.None{}); err != nil || len(removed.DeletedLayers) != 0 {
		t.Errorf("the pull did not hold its layer: %+v, %v", removed, err)
	}
	image, err := c.AddImage(ctx, protocol.AddImage{Reference: "host/name:1", Digest: digest, Config: configOf(digest)}, 0)
	if err != nil || len(image.References) != 1 {
		t.Fatalf("%+v, %v", image, err)
	}
	pull.Close()
	if again, err := c.PullImage(ctx, []string{digest}); err != nil || len(again.Lacks) != 0 {
		t.Errorf("%+v, %v", again, err)
	} else {
		again.Close()
	}
	if theirs, err := other.PullImage(ctx, []string{digest}); err != nil || len(theirs.Lacks) != 1 {
		t.Errorf("another user: %+v, %v", theirs, err)
	} else {
		theirs.Close()
	}
	if got, err := c.Image(ctx, image.ID); err != nil || !bytes.Equal(got.Config, configOf(digest)) {
		t.Errorf("the config is not as the image has it: %s, %v", got.Config, err)
	}
	if all, err := protocol.Ask(ctx, other, protocol.OpImages, protocol.None{}); err != nil || len(all) != 0 {
		t.Errorf("another user: %+v, %v", all, err)
	}
	if _, err := protocol.Ask(ctx, other, protocol.OpImageRemove, image.ID); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("another user: %v", err)
	}
	if removed, err := protocol.Ask(ctx, c, protocol.OpImageRemove, image.ID[:15]); err != nil || len(removed.Deleted) != 1 {
		t.Errorf("%+v, %v", removed, err)
	}
}

func TestRequestsAboutImagesThatAreNone(t *testing.T) {
	w, _ := withImages(t)
	c := w.client(t, 0)
	ctx := t.Context()
	var wrong *fault.ConfigError
	if _, err := c.PullImage(ctx, []string{"sha256:../../x"}); !errors.As(err, &wrong) {
		t.Errorf("%v", err)
	}
	if _, err := c.PullImage(ctx, make([]string, 1001)); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "1001 layers") {
		t.Errorf("%v", err)
	}
	if _, err := c.AddImage(ctx, protocol.AddImage{Config: make([]byte, protocol.MaxImageConfig+1)}, 0); !errors.As(err, &wrong) {
		t.Errorf("%v", err)
	}
	if _, err := c.AddImage(ctx, protocol.AddImage{Config: bytes.Repeat([]byte("x"), protocol.MaxImageConfig)}, 0); err == nil || errors.As(err, &wrong) {
		t.Errorf("the largest config did not reach the store: %v", err)
	}
	_, digest := testhost.Layer(t, "content")
	if err := c.AddImageLayer(ctx, digest, file(t, []byte("no archive")), 0); err == nil {
		t.Error("another content was added")
	}
}

// One call at a time adds for a user with a rule. Other calls do not wait.
func TestAddsOfAUserTakeTurns(t *testing.T) {
	w, dir := withImages(t, Rule{User: "1001", Images: 1 << 20})
	c := w.client(t, 1001)
	layer, digest := testhost.Layer(t, "content")
	r, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	_, other := testhost.Layer(t, "other content")
	go func() { first <- c.AddImageLayer(ctx, other, r, 0) }()
	testhost.Eventually(t, "the first layer begins", func() bool {
		drafts, err := filepath.Glob(filepath.Join(dir, "drafts/*"))
		return err == nil && len(drafts) == 1
	})
	go func() { second <- c.AddImageLayer(t.Context(), digest, file(t, layer), 0) }()
	if all, err := protocol.Ask(t.Context(), c, protocol.OpImages, protocol.None{}); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	select {
	case err := <-second:
		t.Errorf("the second layer did not wait: %v", err)
		second <- err
	case <-time.After(300 * time.Millisecond): // a layer that does not wait takes a tenth of that
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("%v", err)
	}
	hold.Close()
}

// A pull that its client leaves open does not keep the launcher from its end.
func TestAnOpenPullEndsWithTheLauncher(t *testing.T) {
	w, _ := withImages(t)
	pull, err := w.client(t, 0).PullImage(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pull.Close()
	w.Shutdown(t.Context())
}
