package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/part"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/pool"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// blanks are the pool of a launcher, and the counts of its claims.
type blanks struct {
	*pool.Pool[*blank]
	launcher *Launcher
	claims   pool.Claims
	// failed is told why a blank, or a rest of one, could not be made or removed.
	failed func(error)
	// noOverlays says that this kernel cannot add an overlay to a blank.
	noOverlays atomic.Bool
}

// StartPool keeps blanks ready from now on: sandboxes that need only a name and the rest of their
// configuration. [Launcher.Create] claims them. path and home are of the environment of the expected
// clients. Until a client asks for others, the blanks are for sandboxes of root in memory. The pool keeps
// a quarter of its blanks at most for another user whose [Sources] have no number. failed is told why a
// blank could not be made or removed.
func (l *Launcher) StartPool(c spec.PoolConfig, path, home string, failed func(error)) error {
	c, err := c.Complete()
	if err != nil {
		return fault.Refusal(err)
	}
	if err := l.canExchange(); err != nil {
		return fault.Unavailable(fmt.Errorf("pool: %w; put --root on another file system", err))
	}
	config, err := part.Completed(spec.Config{}, spec.StorageMemory)
	if err != nil {
		return err
	}
	t, _ := templateOf(protocol.Create{Config: config, Path: path, Home: home}, Sources{}, part.ImageRoot{})
	first, err := t.kind()
	if err != nil {
		return err
	}
	l.blanks = &blanks{launcher: l, failed: failed}
	l.blanks.Pool = pool.Start(c, first, pool.Maker[*blank]{
		Make:   l.blanks.newBlank,
		Check:  l.blanks.checkBlank,
		End:    func(b *blank) error { return b.remove(context.Background()) },
		Room:   l.blanks.roomForBlank,
		Failed: failed,
	})
	l.images.Removed = l.blanks.dropImages
	l.tending.Go(l.blanks.removeUnmade)
	return nil
}

// checkBlank is the regular check of a blank that nobody claims meanwhile. Too few descriptors say nothing about the
// blank: a later check, or the claim, looks again.
func (p *blanks) checkBlank(ctx context.Context, b *blank, isNext bool) error {
	err := cmp.Or(b.check(ctx, blankAnswerTime), b.checkImage(ctx))
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return nil
	}
	if err != nil {
		return err
	}
	return b.setLeaf(ctx, isNext)
}

// removeUnmade removes the rests of killed launchers: blanks, and sandboxes that were made or removed only
// in part.
func (p *blanks) removeUnmade() {
	ids, err := p.launcher.parts.Directories()
	if err != nil {
		p.failed(err)
	}
	for _, id := range ids {
		if statedir.Exists(filepath.Join(p.launcher.Dir(id), record.FileName)) {
			continue
		}
		if _, err := p.launcher.pruneOne(context.Background(), id); err != nil {
			p.failed(fmt.Errorf("remove what is left of %s: %w", id, err))
		}
	}
}

// leastFree is the value of [Launcher.leastFree].
const leastFree = 256

// roomForBlank returns an error if another blank would take memory or ids that sandboxes need.
func (p *blanks) roomForBlank() error {
	if err := kernel.MemoryShort(); err != nil {
		return err
	}
	free, err := p.launcher.ids.Free()
	if err == nil && free <= p.launcher.leastFree {
		err = fmt.Errorf("the host has room for only %d more sandboxes", free)
	}
	return err
}

// canExchange returns an error if the file system of the state root cannot exchange two directories.
func (l *Launcher) canExchange() error {
	one, err := statedir.Make(l.Sandboxes(), newID())
	if err != nil {
		return err
	}
	two, err := statedir.Make(l.Sandboxes(), newID())
	if err != nil {
		return errors.Join(err, one.Remove())
	}
	return errors.Join(one.Exchange(two), one.Remove(), two.Remove())
}

// StopPool removes all blanks. Without a pool it does nothing.
func (l *Launcher) StopPool() {
	if l.blanks != nil {
		l.blanks.Close()
	}
}

// errNoPool says that a launcher has no pool.
var errNoPool = errors.New("this launcher has no pool; start it with launcher --pool")

// ResizePool changes the bounds of the pool.
//
// Errors: *[fault.ConfigError], also for a launcher without a pool.
func (l *Launcher) ResizePool(c spec.PoolConfig) error {
	if l.blanks == nil {
		return fault.Refusal(errNoPool)
	}
	c, err := c.Complete()
	if err != nil {
		return fault.Refusal(err)
	}
	l.blanks.Resize(c)
	return nil
}

// PoolStats are the counts of the pool. If user is not nil, they are of this user only.
//
// Errors: *[fault.ConfigError] for a launcher without a pool.
func (l *Launcher) PoolStats(user *uint32) (spec.PoolStats, error) {
	if l.blanks == nil {
		return spec.PoolStats{}, fault.Refusal(errNoPool)
	}
	counts := l.blanks.Counts(user)
	s := spec.PoolStats{
		Config: l.blanks.Config(), Ready: counts.Ready, Total: counts.Ready + counts.Making,
	}
	if user == nil {
		s.Failed, s.LastError, s.Stale = counts.Failed, counts.LastError, counts.Unhealthy
	}
	l.blanks.claims.Add(&s, user)
	return s, nil
}

// takeBlank takes a blank for a request out of the pool, and returns its kind. If there is none, it
// returns the reason.
func (p *blanks) takeBlank(ctx context.Context, r protocol.Create, from Sources, image part.ImageRoot) (taken pool.Item[*blank], kind, reason string) {
	t, reason := templateOf(r, from, image)
	if len(r.Config.Overlays) > 0 && p.noOverlays.Load() {
		reason = "overlays"
	}
	share := p.share(from)
	if share == 0 {
		reason = "rule"
	}
	kind, err := t.kind()
	if err != nil {
		reason = "template"
	}
	if reason != "" {
		return taken, "", reason
	}
	for range mostStale {
		taken, ok := p.Take(kind, from.UID, share)
		if !ok {
			return taken, "", "empty"
		}
		err := taken.Value.check(ctx, p.launcher.claimAnswer)
		if err == nil {
			return taken, kind, ""
		}
		p.claims.Stale(from.UID)
		p.EndLater(taken.Value, err)
	}
	return taken, "", "stale"
}

// mostStale is the number of stale blanks that one request meets at most. The check of each can take as
// long as [Launcher.claimAnswer].
const mostStale = 3

// share is the number of blanks that the pool keeps for one user at most.
func (p *blanks) share(from Sources) int {
	most := p.Config().Max
	switch {
	case from.UID == 0:
		return most
	case from.Blanks != nil:
		return min(*from.Blanks, most)
	}
	return max(1, most/4)
}
