package jobs

import (
	"context"
	"errors"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A FirstLeaf is the cgroup of a sandbox and the leaf of its first exec, made before a session opens the sandbox. A nil
// FirstLeaf is empty.
type FirstLeaf struct {
	group *cgroups.Group
	leaf  ExecLeaf
	state *cgroups.State // of group; nil if it could not be opened
}

// MakeFirstLeaf makes the leaf of the first exec of a sandbox that has no session yet. r is the record that the
// sandbox will have. The caller must close the leaf, or give it to [Sessions.OpenWritten].
func (l *Sessions) MakeFirstLeaf(id string, r record.Record) (*FirstLeaf, error) {
	group, err := l.OpenGroup(id)
	if err != nil {
		return nil, err
	}
	leaf, err := makeLeaf(group, r, l.newExec)
	if err != nil {
		return nil, errors.Join(err, group.Close())
	}
	// Later steps use the files that these calls open. If a call fails here, the later step opens its file itself, and
	// returns the error.
	_, _ = leaf.Usage()
	state, _ := group.OpenState()
	return &FirstLeaf{group, leaf, state}, nil
}

// FitTo removes the leaf if a sandbox with this record has leaves of another kind. The caller must do so before it
// changes the limits of the cgroup: on v1 a leaf must not have more processor time than the sandbox.
func (f *FirstLeaf) FitTo(ctx context.Context, r record.Record) error {
	if f == nil || f.leaf.under == termsOf(r) {
		return nil
	}
	return f.Remove(ctx)
}

// Remove removes the leaf, and empties f.
func (f *FirstLeaf) Remove(ctx context.Context) error {
	if f == nil || f.group == nil {
		return nil
	}
	return errors.Join(f.leaf.Delete(ctx), f.Close())
}

// Close closes the descriptors. The cgroups stay, and the removal of the sandbox removes them.
func (f *FirstLeaf) Close() error {
	if f == nil || f.group == nil {
		return nil
	}
	err := errors.Join(f.leaf.Close(), f.group.Close())
	if f.state != nil {
		err = errors.Join(err, f.state.Close())
	}
	*f = FirstLeaf{}
	return err
}

// take gives the content to the caller, and empties f. It returns false if f is empty.
func (f *FirstLeaf) take() (content FirstLeaf, ok bool) {
	if f == nil || f.group == nil {
		return FirstLeaf{}, false
	}
	content, *f = *f, FirstLeaf{}
	return content, true
}
