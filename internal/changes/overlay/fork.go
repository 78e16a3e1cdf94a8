package overlay

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Fork has a sandbox that was just made begin with the files of a snapshot. It returns the
// record with the layers of the snapshot. It refuses a snapshot that was replaced since s was read:
// other files have another level of sensitivity.
func (v *Files) Fork(ctx context.Context, name string, s Snapshot) (record.Record, error) {
	r := v.Current()
	r.Trees = slices.Clone(r.Trees)
	for _, t := range s.Trees { // the writes are as old as the snapshot's trees
		if own := r.TreeAt(t.Path); own != nil && t.Since.Before(own.Since) {
			own.Since = t.Since
		}
	}
	if t := s.ImageTree(); t != nil && (r.TreeAt(t.Path) == nil || r.TreeAt(t.Path).Image != t.Image) {
		return r, &fault.ConfigError{Reason: fmt.Sprintf("snapshot %s has files above the image %s; leave out --image, or name this one, and --writable", name, t.Image)}
	}
	f := &layerSwitch{files: v, record: r}
	var err error
	if f.store, err = record.OpenStore(r.Init); err != nil {
		return r, err
	}
	defer f.store.Close()
	f.record.Stacks = map[string]record.Stack{}
	names, err := v.linkImages(name, s)
	if err != nil {
		return r, fmt.Errorf("snapshot %s: %w", name, err)
	}
	switch linked, err := v.keeper.ReadSnapshot(name, 0); {
	case err != nil:
		return r, err
	case !linked.Created.Equal(s.Created):
		return r, &fault.ConfigError{Reason: fmt.Sprintf("snapshot %s was replaced meanwhile; try again", name)}
	}
	for _, c := range newCovers(r) {
		refs, ok := s.Places[c.Path]
		if c.Host != "" || !ok && c.Same == "" {
			continue
		}
		var below []record.LayerRef
		for _, ref := range refs {
			below = append(below, record.LayerRef{Image: names[ref.Image], Dir: ref.Dir})
		}
		if c.Same == "" {
			f.record.Stacks[c.Path] = record.Stack{Below: below}
		}
		f.covers = append(f.covers, c)
	}
	for _, path := range slices.Sorted(maps.Keys(s.Places)) {
		bound := path == spec.WorkspacePath && r.Config.Workspace != "" // a directory of the host takes its place
		if _, ok := f.record.Stacks[path]; !ok && !bound {
			return r, &fault.ConfigError{Reason: fmt.Sprintf("snapshot %s has files of %s, which this sandbox has no layer for: overlay it", name, path)}
		}
	}
	defer f.covers.close()
	if err := f.begin(ctx, s.Renamed); err != nil {
		return r, fmt.Errorf("begin with snapshot %s: %w", name, err)
	}
	for path, n := range f.record.Switch.Layers {
		f.record.ChangeLayers(path, func([]int) []int { return []int{n} })
	}
	f.record.Switch = nil
	return f.record, nil
}

// begin puts the layers in place, of a sandbox in which nothing runs yet. renamed says that the layers of the
// snapshot have renamed directories.
func (s *layerSwitch) begin(ctx context.Context, renamed bool) error {
	if err := s.numberFrom(len(s.record.Trees)); err != nil {
		return err
	}
	layers, err := makeDir(s.store, "layer") // there is none where nothing is overlaid
	if err != nil {
		return err
	}
	layers.Close()
	if s.thread, err = s.covers.enter(s.record.Init); err != nil {
		return err
	}
	defer s.thread.Stop()
	for _, c := range s.covers { // the present upper layer is empty
		if c.Tree != nil {
			t := *c.Tree
			t.Layers = nil
			c.Tree = &t
		}
	}
	if err := s.stack(); err != nil {
		return err
	}
	if renamed {
		if err := s.wholeForFork(ctx); err != nil {
			return err
		}
	}
	return s.thread.Do(s.covers.mountAll)
}

func (s *layerSwitch) numberFrom(next int) error {
	s.record.Switch = &record.Switch{Layers: map[string]int{}}
	for _, c := range s.covers {
		// A stopped sandbox is kept with all its layers: one more than it may switch to.
		if len(s.record.Stacks[c.Path].Below) > MaxLayers {
			return &fault.ConfigError{Reason: fmt.Sprintf("%s has %d layers, as many as there can be; make a new sandbox from the files that it shows", c.Path, MaxLayers)}
		}
		if c.Same == "" {
			s.record.Switch.Layers[c.Path] = next
			next++
		}
	}
	return nil
}

// linkImages gives a snapshot's images names of the sandbox's, which go with it.
func (v *Files) linkImages(name string, s Snapshot) (map[string]string, error) {
	stores, err := statedir.OpenData(v.Data, record.StoresName)
	if err != nil {
		return nil, err
	}
	defer stores.Close()
	names := map[string]string{}
	for _, refs := range s.Places {
		for _, ref := range refs {
			if names[ref.Image] != "" {
				continue
			}
			image := v.ImagePrefix(v.ID) + rand.Text()[:12] + record.ImageEnd
			if err := os.Link(filepath.Join(v.SnapshotDir(name), filepath.Base(ref.Image)), v.ImagePath(image)); err != nil {
				return nil, err
			}
			names[ref.Image] = image
		}
	}
	return names, nil
}
