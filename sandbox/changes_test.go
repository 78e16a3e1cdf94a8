package sandbox_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
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
