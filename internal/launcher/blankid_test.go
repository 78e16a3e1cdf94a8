package launcher

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A launcher holds the directory of a blank until a claim. No request may wait for that.
func TestTheIDOfABlankIsAnsweredAtOnce(t *testing.T) {
	l := newTestLauncher(t)
	b, err := (&blanks{launcher: l}).newBlank(t.Context(), defaultKind(t), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), testhost.Patience)
	defer cancel()
	for _, reuse := range []bool{true, false} {
		_, err := l.Create(ctx, protocol.Create{Name: b.ID, Reuse: reuse}, Sources{})
		if !errors.Is(err, fault.ErrExists) || errors.Is(err, fault.ErrBusy) {
			t.Errorf("create, reuse %v: %v", reuse, err)
		}
	}
	if err := l.Remove(ctx, b.ID); err != nil { // as if there were no sandbox
		t.Errorf("remove: %v", err)
	}
	if _, err := l.Info(ctx, b.ID); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("info: %v", err)
	}
	if err := b.check(ctx, testhost.Patience); err != nil {
		t.Errorf("the blank: %v", err)
	}
}

// Too few descriptors say nothing about a blank.
func TestACheckWithFewDescriptorsKeepsABlank(t *testing.T) {
	l := newTestLauncher(t)
	config, err := part.Completed(spec.Config{}, spec.StorageMemory)
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir() // with a program that a note names
	testhost.WriteFile(t, bin+"/go", "")
	if err := os.Chmod(bin+"/go", 0o755); err != nil {
		t.Fatal(err)
	}
	wanted, _ := templateOf(protocol.Create{Config: config, Path: bin, Home: "/nowhere"}, Sources{}, part.ImageRoot{})
	kind, err := wanted.kind()
	if err != nil {
		t.Fatal(err)
	}
	b, err := (&blanks{launcher: l}).newBlank(t.Context(), kind, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for free := range 8 {
		testhost.WithFreeDescriptors(t, free, func() { err = (&blanks{launcher: l}).checkBlank(t.Context(), b, false) })
		if err != nil {
			t.Errorf("%d free descriptors: %v", free, err)
		}
	}
}
