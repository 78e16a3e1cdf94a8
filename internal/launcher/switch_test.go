package launcher

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// The files of a sandbox fill its disk. A snapshot and a discard fail then, and the sandbox goes on.
func TestASwitchOnAFullDiskLeavesTheSandboxUp(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := ownedDir(t, 4321, "host\n")
	sb := createUp(t, l, newID(), spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}, Cwd: dir, Limits: spec.Limits{Disk: 32 << 20}})
	if err := sb.Snapshot(t.Context(), "first-"+sb.ID()); err != nil {
		t.Fatal(err)
	}
	fill := "cat /dev/zero > fill; for i in $(seq 5000); do echo x > s$i || break; done; mkdir none && exit 1; true"
	if r, out := sh(t, sb, fill); !r.OK() {
		t.Fatal(r, out)
	}
	failed := 0
	for _, change := range []func() error{
		func() error { return sb.Snapshot(t.Context(), "second-"+sb.ID()) },
		func() error { return sb.Discard(t.Context()) },
	} {
		if err := change(); err != nil {
			failed++
		}
		if r, out := sh(t, sb, "rm -f s1"); !r.OK() {
			t.Fatal(r, out)
		}
	}
	if failed == 0 {
		t.Error("the disk was not full")
	}
}
