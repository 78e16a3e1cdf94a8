package launcher

import (
	"context"
	"slices"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
)

// Beginning returns the part of a snapshot's configuration that a fork takes over.
//
// Errors: [launch.ErrNotFound] for a snapshot that the user may not have.
func (l *Launcher) Beginning(_ context.Context, snapshot string, uid uint32) (launch.Beginning, error) {
	s, err := l.layers.ReadSnapshot(snapshot, uid)
	if err != nil {
		return launch.Beginning{}, err
	}
	return launch.Beginning{Overlays: slices.Clone(s.Config.Overlays), Cwd: s.Config.Cwd}, nil
}

// fork has the sandbox begin with the files of the snapshot that was asked for, if any.
func (m *making) fork(ctx context.Context) error {
	from := m.request.From
	if from == "" {
		return nil
	}
	s, err := m.launcher.layers.ReadSnapshot(from, m.from.UID)
	if err != nil {
		return err
	}
	if err := checkSnapshot(m.launcher.Roots, from, s); err != nil {
		return err
	}
	box := record.NewSandbox(m.launcher.Roots, m.id, nil, m.record)
	if m.record, err = m.launcher.layers.Files(box, nil).Fork(from, s); err != nil {
		return err
	}
	if err := checkBegun(ctx, m.launcher.Roots, m.record); err != nil {
		return err
	}
	return ctx.Err()
}
