package overlay

import (
	"context"

	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// Discard gives each overlay of the sandbox a new upper layer, and throws away the layers
// above the host's files. The caller holds the sandbox.
func (v *Files) Discard(ctx context.Context) error {
	kept, err := v.imageIsKept() // by snapshots or forks, with the layers that they froze
	if err != nil {
		return err
	}
	since, err := record.Settled(ctx)
	if err != nil {
		return err
	}
	trees := func(p record.Place) bool { return p.Tree != nil || p.Same != "" }
	return v.switchLayers(ctx, true, "", trees, func(r *record.Record, p record.Place, n int) {
		t := r.TreeAt(p.Path)
		old := t.Layers[:1]
		if !kept {
			old = t.Layers
		}
		r.Switch.Old = append(r.Switch.Old, old...)
		t.Layers = []int{n}
		if !r.BegunWith(*t) {
			t.Since = since
		}
	})
}
