package sandbox_test

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

// Who reads what a sandbox has written, while another removes it, is told that.
func TestChangesOfWhatIsRemovedMeanwhileSaySo(t *testing.T) {
	m, dir := newIsolated(t), t.TempDir()
	sb := create(t, m, sandbox.Config{Overlays: []string{dir}, Storage: sandbox.StorageDisk, Cwd: dir})
	if r, err := sb.Run(t.Context(), "mkdir d; head -c 1m /dev/zero > d/f"); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	c, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := m.Remove(t.Context(), sb.ID()); err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func() error{
		"diff":  func() error { return c.Diff(io.Discard) },
		"save":  func() error { _, err := c.Save(io.Discard); return err },
		"apply": func() error { _, err := c.Apply(t.Context(), sandbox.ApplyOptions{}); return err },
	} {
		err := use()
		if !errors.Is(err, sandbox.ErrNotFound) || !strings.HasPrefix(err.Error(), "sandbox "+sb.ID()+" was removed meanwhile: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An alteredFake is a provider of fakes, with other answers to an apply. A nil answer is the fake's.
type alteredFake struct {
	*sandboxtest.Fake
	applied, verify func() error
}

type fakeInstance interface {
	sandbox.Instance
	Layers(ctx context.Context) ([]layer.Overlay, error)
	Applied(ctx context.Context, tree string, stamps map[string]layer.Stamp) error
	Verify(ctx context.Context, sync bool) error
	Untie(ctx context.Context, u protocol.Untie) error
	Describe(ctx context.Context) (sandbox.Info, error)
}

type alteredInstance struct {
	fakeInstance
	alteredFake
}

func (a alteredFake) Create(ctx context.Context, request sandbox.Request) (sandbox.Instance, error) {
	i, err := a.Fake.Create(ctx, request)
	if err != nil {
		return nil, err
	}
	return alteredInstance{i.(fakeInstance), a}, nil
}

func (i alteredInstance) Applied(ctx context.Context, tree string, stamps map[string]layer.Stamp) error {
	if i.applied != nil {
		return i.applied()
	}
	return i.fakeInstance.Applied(ctx, tree, stamps)
}

func (i alteredInstance) Verify(ctx context.Context, sync bool) error {
	if i.verify != nil {
		return i.verify()
	}
	return i.fakeInstance.Verify(ctx, sync)
}

// writeFiles plays a command whose arguments are paths with texts to write.
func writeFiles(_ context.Context, p *sandboxtest.Program) int {
	root, err := p.Root()
	if err != nil {
		return 1
	}
	defer root.Close()
	for pair := range slices.Chunk(p.Command.Args[1:], 2) {
		if err := root.WriteFile(strings.TrimPrefix(pair[0], "/"), []byte(pair[1]), 0o644); err != nil {
			return 1
		}
	}
	return 0
}

// box makes a fake with overlays.
func (a alteredFake) box(t *testing.T, overlays ...string) *sandbox.Sandbox {
	t.Helper()
	a.Fake = &sandboxtest.Fake{Run: writeFiles}
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandboxtest.Name}, Providers: []sandbox.Provider{a}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return create(t, m, sandbox.Config{Overlays: overlays})
}

// A conflict in the second directory comes up after the first was applied. The error says so.
func TestALateConflictNamesTheDirectoriesBeforeIt(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	if err := os.WriteFile(second+"/old", []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	verified := 0
	sb := alteredFake{verify: func() error {
		if verified++; verified == 3 { // by the apply, its first and its second commit
			return os.WriteFile(second+"/old", []byte("theirs"), 0o644)
		}
		return nil
	}}.box(t, first, second)
	if r, err := sb.Exec(t.Context(), command("write", first+"/new", "fresh", second+"/old", "other")); err != nil || !r.OK() {
		t.Fatalf("%+v, %v", r, err)
	}
	c, err := sb.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Apply(t.Context(), sandbox.ApplyOptions{})
	conflict, ok := errors.AsType[*sandbox.ConflictError](err)
	if !ok || !slices.Equal(conflict.Directories, []string{first}) || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Path != second+"/old" {
		t.Fatalf("%v", err)
	}
	if want := "all was applied in " + first + "; in the other directories nothing was applied, since"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
	for name, want := range map[string]string{first + "/new": "fresh", second + "/old": "theirs"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A sandbox has no room to note an apply. That is told once, and nothing fails later.
func TestAnApplyThatCannotBeNoted(t *testing.T) {
	full := &sandbox.ConfigError{Reason: "no room"}
	for name, first := range map[string]error{"by the apply": full, "by the next program": errors.New("the launcher is gone")} {
		t.Run(name, func(t *testing.T) {
			why, dir := first, t.TempDir()
			sb := alteredFake{applied: func() error { return why }}.box(t, dir)
			if r, err := sb.Exec(t.Context(), command("write", dir+"/new", "fresh")); err != nil || !r.OK() {
				t.Fatalf("%+v, %v", r, err)
			}
			with := func(f func(c *sandbox.Changes)) {
				t.Helper()
				c, err := sb.Changes(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				f(c)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			with(func(c *sandbox.Changes) {
				if _, err := c.Apply(t.Context(), sandbox.ApplyOptions{}); !errors.Is(err, first) || !strings.Contains(err.Error(), "all was applied in "+dir+", but the sandbox c") {
					t.Errorf("apply: %v", err)
				}
			})
			why = full
			told := 0
			for range 2 {
				with(func(c *sandbox.Changes) {
					for _, note := range c.Notes() {
						if strings.Contains(note, "no room") {
							told++
						}
					}
				})
			}
			want := 1
			if errors.Is(first, full) { // the apply has told it
				want = 0
			}
			if told != want {
				t.Errorf("told %d times, want %d", told, want)
			}
			if got, err := os.ReadFile(dir + "/new"); err != nil || string(got) != "fresh" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
