package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// TestALauncherHandsLayersToTheirOwner who is no root, and reads there what its
// sandbox has written with its own rights; nobody else gets any.
func TestALauncherHandsLayersToTheirOwner(t *testing.T) {
	const uid = 4242
	s := newSandboxes(t)
	dir := ownedTree(t, uid)
	for above := filepath.Dir(dir); above != "/tmp" && above != "/"; above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	closed := filepath.Join(dir, "of-root")
	if err := errors.Join(os.Mkdir(closed, 0o755), os.WriteFile(closed+"/secret", []byte("secret"), 0o600)); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(t.TempDir(), "rules.json")
	text := fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":["%s"],"limits":{"disk":"64m"}}]}`, uid, dir)
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l := s.launcher(filepath.Join(t.TempDir(), "s"), "--mode", "0666", "--rules", rules)
	as(t, uid, func(ctx context.Context) error {
		c, err := protocol.Dial(ctx, l.socket)
		if err != nil {
			return err
		}
		defer c.Close()
		for name, config := range map[string]spec.Config{
			"another's":      {Overlays: []string{closed}},
			"the whole host": {Overlays: []string{"/"}},
			"one outside":    {Overlays: []string{"/usr"}},
			"more disk":      {Overlays: []string{dir}, Limits: spec.Limits{Disk: 65 << 20}},
		} {
			if _, err := c.Create(ctx, protocol.Create{Config: config}); !errors.Is(err, fault.ErrRefused) {
				t.Errorf("%s: %v", name, err)
			}
		}
		i, err := c.Create(ctx, protocol.Create{Name: "box", Config: spec.Config{Overlays: []string{dir}}})
		if err != nil {
			return err
		}
		if i.Config.Limits.Disk != 64<<20 || i.Config.Limits.Files != 8192 {
			t.Errorf("limits %+v", i.Config.Limits)
		}
		output(t, c, "box", "cd "+dir+" && echo mine >new && (umask 077 && echo mine >closed) && rm -r dir && mkdir dir && ! cat of-root/secret .ssh/id 2>/dev/null")
		stamp := layer.Stamp{CTime: time.Now().UnixNano()}
		if err := c.Applied(ctx, "box", dir, map[string]layer.Stamp{"new\xff": stamp}); err != nil {
			t.Error(err)
		}
		trees, err := c.Layers(ctx, "box")
		if err != nil {
			return err
		}
		for _, tree := range trees {
			defer tree.Close()
		}
		if len(trees) != 1 || len(trees[0].Layers) != 1 || trees[0].Path != dir || trees[0].Owner != (layer.Owner{UID: uid, GID: uid}) || trees[0].Stamps["new\xff"] != stamp {
			t.Fatalf("%+v", trees)
		}
		upper := trees[0].Layers[0]
		if len(upper.Marks) != 1 || !upper.Marks["dir"].Opaque {
			t.Errorf("marks: %+v", upper.Marks)
		}
		at := "/proc/thread-self/fd/" + strconv.Itoa(int(upper.Dir.Fd()))
		names := []string{"new"}
		var fs unix.Statfs_t
		if err := unix.Fstatfs(int(upper.Dir.Fd()), &fs); err != nil || fs.Flags&unix.ST_RDONLY != 0 {
			names = append(names, "closed") // before Linux 6.15 it is no mount of its own, with no ids of its own
		}
		for _, name := range names {
			if text, err := os.ReadFile(filepath.Join(at, name)); string(text) != "mine\n" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
		if err := os.WriteFile(at+"/made", nil, 0o600); err == nil {
			t.Error("a layer was written to")
		}
		if exists(at + "/../../../area") {
			t.Error("the store above a layer is open")
		}
		return nil
	})
	as(t, uid+1, func(ctx context.Context) error {
		if c, err := protocol.Dial(ctx, l.socket); err == nil {
			_, err := c.Layers(ctx, "box")
			t.Errorf("another's layers: %v", err)
			c.Close()
		}
		return nil
	})
	if err := l.client().Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	interrupt(t, l.testProcess)
}

// A fork takes over the overlays of its snapshot, and the rule of today has to allow
// them, not that of the snapshot's day.
func TestAForkIsHeldToTheRule(t *testing.T) {
	need(t, layersOfAnywhere(t))
	const uid = 4243
	s := newSandboxes(t)
	kept, lost := ownedTree(t, uid), ownedTree(t, uid)
	for _, dir := range []string{kept, lost} {
		for above := filepath.Dir(dir); above != "/tmp" && above != "/"; above = filepath.Dir(above) {
			if err := os.Chmod(above, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	snaps := map[string]string{"kept-" + filepath.Base(s.root): kept, "lost-" + filepath.Base(s.root): lost}
	begin := func(workspaces ...string) *launcherProcess {
		rules := filepath.Join(t.TempDir(), "rules.json")
		text := fmt.Sprintf(`{"peers":[{"user":%d,"workspaces":["%s"],"limits":{"disk":"64m"}}]}`, uid, strings.Join(workspaces, `","`))
		if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return s.launcher(filepath.Join(t.TempDir(), "s"), "--mode", "0666", "--rules", rules)
	}
	l := begin(kept, lost)
	as(t, uid, func(ctx context.Context) error {
		c, err := protocol.Dial(ctx, l.socket)
		if err != nil {
			return err
		}
		defer c.Close()
		for snap, dir := range snaps {
			config := spec.Config{Overlays: []string{dir}, Cwd: dir, Storage: spec.StorageDisk}
			if _, err := c.Create(ctx, protocol.Create{Name: snap, Config: config}); err != nil {
				return err
			}
			err := protocol.Tell(ctx, c, protocol.OpSnapshot, snap, snap)
			if err := errors.Join(err, c.Remove(ctx, snap)); err != nil {
				return err
			}
		}
		return nil
	})
	interrupt(t, l.testProcess)
	l = begin(kept)
	defer func() {
		c := l.client()
		for snap := range snaps {
			if _, err := protocol.Ask(t.Context(), c, protocol.OpRemoveSnapshot, snap); err != nil {
				t.Error(err)
			}
		}
		c.Close()
		interrupt(t, l.testProcess)
	}()
	as(t, uid, func(ctx context.Context) error {
		c, err := protocol.Dial(ctx, l.socket)
		if err != nil {
			return err
		}
		defer c.Close()
		for snap, dir := range snaps {
			i, err := c.Create(ctx, protocol.Create{From: snap, Config: spec.Config{Storage: spec.StorageDisk}})
			switch {
			case dir == lost && !errors.Is(err, fault.ErrRefused):
				t.Errorf("a directory that the rule does not allow: %+v, %v", i, err)
			case dir == kept && (err != nil || len(i.Config.Overlays) != 1 || i.Config.Cwd != dir):
				t.Errorf("a directory that the rule allows: %+v, %v", i, err)
			}
			if err == nil {
				if err := c.Remove(ctx, i.ID); err != nil {
					t.Error(err)
				}
			}
		}
		return nil
	})
}
