package launcher

import (
	"context"
	"errors"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs"
)

// claim turns a blank into the sandbox of the request. Without a fitting blank, claim returns the reason, and
// leaves nothing of a blank.
func (m *creation) claim(ctx context.Context) (missed string, err error) {
	start := time.Now()
	taken, kind, missed := m.launcher.blanks.takeBlank(ctx, m.Request, m.From, m.Image)
	if missed != "" {
		return missed, nil
	}
	b := taken.Value
	additions, err := m.OpenAdditions(&b.Making)
	if err != nil { // a sandbox without a blank can have them, or has a better error
		m.launcher.blanks.Return(kind, taken)
		return "place", nil
	}
	defer additions.Close()
	if m.state == nil {
		m.ID, m.state = b.ID, b.state
	}
	cold := *m
	err = m.dress(ctx, b, additions)
	b.Shown.Close()
	if err == nil {
		m.claimed = time.Since(start)
		return "", nil
	}
	if errors.Is(err, rootfs.ErrDetachedOverlay) {
		m.launcher.blanks.noOverlays.Store(true)
	} else if _, refused := errors.AsType[*fault.ConfigError](err); refused || ctx.Err() != nil {
		return "", err
	}
	// The blank was broken: the caller makes another sandbox in its place.
	left := errors.Join(m.Conn.Close(), m.Leaf.Close())
	*m = cold
	err = m.launcher.clearHeld(ctx, m.ID, m.state)
	if err == nil { // after an error the next removal needs the names of the blank
		err = m.state.Renew()
	}
	return "broken", errors.Join(left, err)
}

// dress gives a blank the name and the configuration of the request. After an error the caller must remove
// the sandbox with that name.
func (m *creation) dress(ctx context.Context, b *blank, a *part.Additions) error {
	m.Take(&b.Making)
	if m.ID != b.ID {
		if err := m.takeName(ctx, b); err != nil {
			return err
		}
	}
	return m.Adopt(ctx, &b.Making, a)
}

// takeName gives a blank the name of the request.
func (m *creation) takeName(ctx context.Context, b *blank) error {
	l := m.launcher
	if err := m.state.Exchange(b.state); err != nil {
		return errors.Join(err, b.remove(ctx))
	}
	spare := b.state // the directory that was made for the request
	l.tending.Go(func() {
		if err := spare.Remove(); err != nil {
			l.blanks.failed(err)
		}
	})
	return container.Rename(l.State, b.ID, m.ID)
}
