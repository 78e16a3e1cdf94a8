package sandbox_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/layer"
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

// A refusing is a provider of fakes that cannot note an apply, for a reason.
type refusing struct {
	*sandboxtest.Fake
	why *error
}

type fakeInstance interface {
	sandbox.Instance
	Layers(ctx context.Context) ([]launch.Tree, error)
	Applied(ctx context.Context, tree string, stamps map[string]layer.Stamp) error
	Verify(ctx context.Context, sync bool) error
	Describe(ctx context.Context) (sandbox.Info, error)
}

type refusingInstance struct {
	fakeInstance
	why *error
}

func (r refusing) Create(ctx context.Context, request sandbox.Request) (sandbox.Instance, error) {
	i, err := r.Fake.Create(ctx, request)
	if err != nil {
		return nil, err
	}
	return refusingInstance{i.(fakeInstance), r.why}, nil
}

func (i refusingInstance) Applied(context.Context, string, map[string]layer.Stamp) error { return *i.why }

// A sandbox has no room to note an apply. That is told once, and nothing fails later.
func TestAnApplyThatCannotBeNoted(t *testing.T) {
	full := &sandbox.ConfigError{Reason: "no room"}
	for name, first := range map[string]error{"by the apply": full, "by the next program": errors.New("the launcher is gone")} {
		t.Run(name, func(t *testing.T) {
			why := first
			p := refusing{&sandboxtest.Fake{Run: playScript}, &why}
			m, err := sandbox.NewManager(sandbox.ManagerConfig{Prefer: []string{sandboxtest.Name}, Providers: []sandbox.Provider{p}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			dir := t.TempDir()
			sb := create(t, m, sandbox.Config{Overlays: []string{dir}})
			if r, err := sb.Exec(t.Context(), script("write "+dir+"/new fresh").command()); err != nil || !r.OK() {
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
				if _, err := c.Apply(t.Context(), sandbox.ApplyOptions{}); !errors.Is(err, first) || !strings.Contains(err.Error(), "all was applied, but the sandbox c") {
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
