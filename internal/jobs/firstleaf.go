package jobs

import (
	"context"
	"errors"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// A FirstLeaf is the cgroup of a sandbox and the leaf of its first exec, made before a session opens the sandbox. A nil
// FirstLeaf is empty.
type FirstLeaf struct {
	group *cgroups.Group
	leaf  MadeLeaf
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
	_, _ = leaf.Usage() // opens the files of the counts, so that the end of the first exec need not
	return &FirstLeaf{group, leaf}, nil
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
	f.group = nil
	return err
}

// take gives the group and the leaf to the caller. It returns false if they are gone.
func (f *FirstLeaf) take() (group *cgroups.Group, leaf MadeLeaf, ok bool) {
	if f == nil || f.group == nil {
		return nil, MadeLeaf{}, false
	}
	group, f.group = f.group, nil
	return group, f.leaf, true
}
