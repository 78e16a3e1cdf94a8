package sandbox_test

import (
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox/sandboxtest"
)

func TestImagesOfAFake(t *testing.T) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Providers: []sandbox.Provider{&sandboxtest.Fake{}}, Prefer: []string{sandboxtest.Name}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ctx := t.Context()
	var states []sandbox.LayerState
	pulled, err := m.PullImage(ctx, "busybox", sandbox.PullOptions{Progress: func(p sandbox.ImageProgress) { states = append(states, p.State) }})
	if err != nil || len(pulled.References) != 1 || pulled.References[0].Name != "docker.io/library/busybox:latest" || !slices.Equal(states, []sandbox.LayerState{sandbox.LayerAdded}) {
		t.Fatalf("%+v, %v, %v", pulled, err, states)
	}
	if _, err := m.PullImage(ctx, "busybox", sandbox.PullOptions{Name: "own/name:1"}); err != nil {
		t.Fatal(err)
	}
	nameless, err := m.PullImage(ctx, "dir:/srv/root", sandbox.PullOptions{})
	if err != nil || len(nameless.References) != 0 {
		t.Fatalf("%+v, %v", nameless, err)
	}
	for _, name := range []string{"busybox", "own/name:1"} {
		if got, err := m.Image(ctx, name); err != nil || got.ID != pulled.ID {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := m.RemoveImage(ctx, pulled.ID); err == nil {
		t.Error("an image with two names was removed by its id")
	}
	if removed, err := m.RemoveImage(ctx, "busybox"); err != nil || len(removed.Untagged) != 1 || len(removed.Deleted) != 0 {
		t.Errorf("%+v, %v", removed, err)
	}
	if removed, err := m.PruneImages(ctx); err != nil || !slices.Equal(removed.Deleted, []string{nameless.ID}) {
		t.Errorf("%+v, %v", removed, err)
	}
}
