package part

import (
	"context"
	"fmt"
)

// ids are the ranges of user ids of sandboxes.
type ids struct{ *Parts }

func (i ids) find() (all []string, err error) {
	owners, err := i.IDs.Owners()
	for _, o := range owners {
		all = append(all, o.Sandbox)
	}
	return all, err
}

// release releases all ranges that are claimed in the sandbox's name, if there is no record.
func (i ids) release(_ context.Context, r *Remains) error {
	if r.moved {
		return nil
	}
	if r.Record != nil && r.Record.IDBase != 0 {
		return i.IDs.Release(r.names.Made, r.Record.IDBase)
	}
	return i.IDs.ReleaseAll(r.names.Made)
}

// claimIDs claims a range of user ids for the sandbox.
func (m *Making) claimIDs(context.Context) (err error) {
	if m.Record.IDBase, err = m.parts.IDs.Claim(m.ID); err != nil {
		return fmt.Errorf("claim a range of user ids: %w", err)
	}
	return nil
}
