package launcher

import (
	"context"
	"errors"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestRefusedSwitchKeepsUndoHistory(t *testing.T) {
	if reason := layersOfAnywhere(t); reason != "" {
		t.Skip(reason)
	}
	l := newTestLauncher(t)
	dir := ownedDir(t, 4321, "host\n")
	sb := createUp(t, l, "box", spec.Config{Storage: spec.StorageDisk, Overlays: []string{dir}})
	switches := map[string]func(context.Context) error{
		"discard":  sb.Discard,
		"snapshot": func(ctx context.Context) error { return sb.Snapshot(ctx, "snap") },
	}
	for name, switchLayers := range switches {
		sh(t, sb, "cd /; echo before > "+dir+"/given")
		if r, out := transact(t, sb, "echo joined > "+dir+"/given"); !r.OK() {
			t.Fatalf("%+v, %+v", r, out)
		}
		p, _ := startPiped(t, sb, spec.Command{Args: []string{"sh", "-c", "cd /; exec 3> " + dir + "/open; touch /tmp/ready; sleep 1000"}})
		eventually(t, "the file is open", func() bool {
			r, _ := sh(t, sb, "cd /; rm /tmp/ready 2>/dev/null")
			return r.OK()
		})
		if err := switchLayers(t.Context()); !errors.Is(err, fault.ErrBusy) {
			t.Errorf("%s while a file is open: %v", name, err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := sb.Undo(t.Context(), 1); err != nil {
			t.Errorf("undo after a refused %s: %v", name, err)
		}
		if _, out := sh(t, sb, "cat "+dir+"/given"); out.stdout != "before\n" {
			t.Errorf("after the undo there is %+v", out)
		}
		if r, out := transact(t, sb, "echo joined > "+dir+"/given"); !r.OK() {
			t.Fatalf("%+v, %+v", r, out)
		}
		if err := switchLayers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := sb.Undo(t.Context(), 1); !isA[*fault.ConfigError](err) {
			t.Errorf("undo after a %s: %v", name, err)
		}
	}
}

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
