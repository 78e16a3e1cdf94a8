package launcher

import (
	"os"
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
)

// A state root that is lost with its tmpfs is none of a range's owner's.
func TestARangeOutlivesTheStateRoot(t *testing.T) {
	l := newTestLauncher(t)
	id := newID()
	base, err := l.ids.Claim(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(l.State); err != nil {
		t.Fatal(err)
	}
	again, err := New(Dirs{State: l.State, Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	if have, err := again.ids.Owners(); err != nil || !slices.Equal(have, []idrange.Owner{{Sandbox: id, Base: base}}) {
		t.Errorf("owners: %v, %v", have, err)
	}
	if pruned, err := again.Prune(t.Context()); err != nil || !slices.Equal(pruned, []string{id}) {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	checkNothingLeft(t, l)
}

// Launchers of two roots share the ranges and prune their own.
func TestPruneSparesTheRangesOfOtherRoots(t *testing.T) {
	l := newTestLauncher(t)
	other, err := New(Dirs{State: t.TempDir(), Data: l.Data})
	if err != nil {
		t.Fatal(err)
	}
	id := newID()
	base, err := other.ids.Claim(id)
	if err != nil {
		t.Fatal(err)
	}
	if pruned, err := l.Prune(t.Context()); err != nil || len(pruned) > 0 {
		t.Errorf("pruned %v, %v", pruned, err)
	}
	if have, err := other.ids.Owners(); err != nil || !slices.Equal(have, []idrange.Owner{{Sandbox: id, Base: base}}) {
		t.Errorf("owners: %v, %v", have, err)
	}
}
