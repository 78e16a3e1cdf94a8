package launcher

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/mountns"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// Beginning returns the part of a snapshot's configuration that a fork takes over.
//
// Errors: [launch.ErrNotFound] for a snapshot that the user may not have.
func (l *Launcher) Beginning(_ context.Context, snapshot string, uid uint32) (launch.Beginning, error) {
	s, err := l.readSnapshot(snapshot, uid)
	if err != nil {
		return launch.Beginning{}, err
	}
	return launch.Beginning{Overlays: slices.Clone(s.Config.Overlays), Cwd: s.Config.Cwd}, nil
}

// fork has a sandbox that was just made begin with a snapshot's files.
func (m *making) fork(ctx context.Context) error {
	if m.request.From == "" {
		return nil
	}
	s, err := m.launcher.readSnapshot(m.request.From, m.from.UID)
	if err != nil {
		return err
	}
	if err := m.launcher.checkSnapshot(m.request.From, s); err != nil {
		return err
	}
	m.record.Trees = slices.Clone(m.record.Trees)
	for _, t := range s.Trees { // what was written then, was written above what was there then
		if own := m.record.TreeAt(t.Path); own != nil && t.Since.Before(own.Since) {
			own.Since = t.Since
		}
	}
	f := &switching{record: m.record}
	f.live = newLive(m.launcher, m.id, m.record, record.Version{}, nil)
	if f.store, err = record.OpenStore(m.record.Init); err != nil {
		return err
	}
	defer f.store.Close()
	f.record.Stacks = map[string]record.Stack{}
	names, err := m.linkImages(s)
	if err != nil {
		return fmt.Errorf("snapshot %s: %w", m.request.From, err)
	}
	for _, c := range newCovers(m.record) {
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
		if _, ok := f.record.Stacks[path]; !ok && m.record.Config.Workspace == "" {
			return &launch.ConfigError{Reason: fmt.Sprintf("snapshot %s has files of %s, which this sandbox has no layer for: overlay it", m.request.From, path)}
		}
	}
	defer f.covers.close()
	if err := f.begin(); err != nil {
		return fmt.Errorf("begin with snapshot %s: %w", m.request.From, err)
	}
	for path, n := range f.record.Switch.Layers {
		f.replaceUpper(path, n)
	}
	f.record.Switch = nil
	m.record = f.record
	if err := m.launcher.checkBegun(ctx, m.record); err != nil {
		return err
	}
	return ctx.Err()
}

// begin puts the layers in place, of a sandbox in which nothing runs yet.
func (s *switching) begin() error {
	if err := s.numberFrom(len(s.record.Trees)); err != nil {
		return err
	}
	layers, err := makeDir(s.store, "layer") // there is none where nothing is overlaid
	if err != nil {
		return err
	}
	layers.Close()
	mounts, err := mountns.Of(s.record.Init)
	if err != nil {
		return err
	}
	if s.thread, err = mountns.Enter(s.record.Init); err != nil {
		return err
	}
	defer s.thread.Stop()
	if err := s.thread.Do(func() error { return s.covers.look(mounts) }); err != nil {
		return err
	}
	for _, c := range s.covers { // what it was made with is empty
		if c.Tree != nil {
			t := *c.Tree
			t.Layers = nil
			c.Tree = &t
		}
	}
	if err := s.stack(); err != nil {
		return err
	}
	return s.thread.Do(s.covers.put)
}

func (s *switching) numberFrom(next int) error {
	s.record.Switch = &record.Switch{Layers: map[string]int{}}
	for _, c := range s.covers {
		// A stopped sandbox is kept with all its layers: one more than it may switch to.
		if len(s.record.Stacks[c.Path].Below) > maxLayers {
			return &launch.ConfigError{Reason: fmt.Sprintf("%s has %d layers, as many as there can be; make a sandbox anew from what it shows", c.Path, maxLayers)}
		}
		if c.Same == "" {
			s.record.Switch.Layers[c.Path] = next
			next++
		}
	}
	return nil
}

// replaceUpper has a place have one layer of the sandbox's own.
func (s *switching) replaceUpper(path string, n int) {
	if t := s.record.TreeAt(path); t != nil {
		t.Layers = []int{n}
		return
	}
	own := s.record.Stacks[path]
	own.Layers = []int{n}
	s.record.Stacks[path] = own
}

// linkImages gives a snapshot's images names of the sandbox's, which go with it.
func (m *making) linkImages(s snapshot) (map[string]string, error) {
	stores, err := statedir.OpenData(m.launcher.Data, record.StoresName)
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
			name := m.launcher.ImagePrefix(m.id) + rand.Text()[:12] + record.ImageEnd
			if err := os.Link(filepath.Join(m.launcher.SnapshotDir(m.request.From), filepath.Base(ref.Image)), m.launcher.ImagePath(name)); err != nil {
				return nil, err
			}
			names[ref.Image] = name
		}
	}
	return names, nil
}
