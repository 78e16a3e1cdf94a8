package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// A creation makes one sandbox: its directory, its parts, and the record that says that the sandbox
// is up. [Launcher.Remove] and [Launcher.Prune] find each of these by the id.
type creation struct {
	part.Making
	launcher *Launcher
	unnamed  bool // the id is new, and no older sandbox has had it
	// state is the held directory. It is nil before a sandbox without a name has taken a blank's.
	state *statedir.Dir
	// claimed is the time that the claim of a blank has taken. It is 0 without a blank.
	claimed time.Duration
}

// noteHandedStore notes that the client may hold the store: processes inside can send their open files to the
// client, over a socket.
func (m *creation) noteHandedStore() error {
	if m.From.Peer() == nil {
		return nil
	}
	top, err := record.OpenStore(m.Record.Init)
	if err != nil {
		return err
	}
	defer top.Close()
	return m.launcher.handed.Add(m.ID, m.Record, top)
}

// claimOrMake makes the parts of the sandbox, or takes those of a blank.
func (m *creation) claimOrMake(ctx context.Context) error {
	blanks := m.launcher.blanks
	if blanks == nil {
		return m.untilOver(ctx, func() error { return m.Make(ctx) })
	}
	missed, err := m.claim(ctx)
	if missed == "" || err != nil {
		return err
	}
	if m.state == nil {
		if m.state, err = statedir.Make(m.launcher.Sandboxes(), m.ID); err != nil {
			return fmt.Errorf("state of sandboxes, below --root: %w", err)
		}
	}
	defer blanks.Elsewhere()()
	err = m.untilOver(ctx, func() error {
		err := m.Make(ctx)
		for errors.Is(err, idrange.ErrNone) && blanks.Yield() {
			err = m.Make(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	blanks.claims.Miss(m.From.UID, missed)
	return nil
}
