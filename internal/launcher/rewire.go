package launcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/ratchet"
	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func (l *Launcher) levels() ratchet.Levels {
	return ratchet.Levels{Data: l.Data, Prefix: l.CgroupPrefix()}
}

// ChangeNetwork changes the network of a sandbox that is up, raises its sensitivity, or both. A
// stricter network holds before ChangeNetwork returns, also for open connections. Processes and
// files stay. After an error of the router the sandbox has no network.
//
// Errors: *[launch.ConfigError], also for a network that the sensitivity does not permit, and the
// errors of Pause.
func (s *Sandbox) ChangeNetwork(ctx context.Context, want launch.NetworkRequest) (change spec.NetworkChange, err error) {
	err = s.alone(ctx, func() error {
		r, err := record.Read(s.session.Path())
		if err != nil {
			return err
		}
		next := r
		if next.Config, err = r.Config.Changed(want.Grant, want.Sensitivity); err != nil {
			return launch.Refusal(err)
		}
		cut, err := s.rewire(r, next)
		change = spec.NewNetworkChange(r.Config, next.Config, cut)
		return err
	})
	return change, err
}

// rewire changes the links of the sandbox to those of the next record. The record is the intent:
// if this process is killed on the way, the next one that opens the sandbox goes on.
func (s *Sandbox) rewire(r, next record.Record) (cut int, err error) {
	isRaised := next.Config.Sensitivity.Above(r.Config.Sensitivity)
	isSame := next.Config.Grant().Equal(r.Config.Grant())
	if isSame && !isRaised {
		return 0, nil
	}
	next.Rewiring = true
	if err := s.session.Keep(next); err != nil {
		return 0, err
	}
	if err := s.launcher.keepLevel(s.session.ID, next); err != nil {
		return 0, errors.Join(err, s.close(next))
	}
	if !isSame {
		if cut, err = s.connect(r.Config.Network, next); err != nil {
			return cut, errors.Join(err, s.close(next))
		}
	}
	next.Rewiring = false
	return cut, s.session.Keep(next)
}

// connect changes the links of the sandbox from one network to that of the record.
func (s *Sandbox) connect(from spec.Network, next record.Record) (cut int, err error) {
	namespace, err := record.OpenNetwork(next.Init)
	if err != nil {
		return 0, s.session.Why(context.Background(), &launch.SandboxError{ID: s.session.ID, Err: launch.ErrNotRunning})
	}
	defer namespace.Close()
	member, err := s.member(next)
	if err != nil {
		return 0, err
	}
	out := s.launcher.router()
	switch {
	case next.Config.Network != spec.NetworkFull:
		return out.Detach(namespace, member.Link)
	case from == spec.NetworkFull:
		cut, err = out.Regrant(namespace, member)
	default:
		err = out.Attach(namespace, member)
	}
	if err != nil {
		return cut, err
	}
	return cut, out.Publish(namespace, next.Init, member)
}

func (s *Sandbox) member(r record.Record) (router.Member, error) {
	names, known, err := s.launcher.NamesOf(s.session.ID)
	if err == nil && !known {
		err = fmt.Errorf("sandbox %s was made by an older release; make another sandbox for another network", s.session.ID)
	}
	if err != nil {
		return router.Member{}, err
	}
	return newMember(names, r)
}

// close takes the network from the sandbox, after a change of it has failed.
func (s *Sandbox) close(r record.Record) error {
	r.Config = r.Config.WithNetwork(spec.NetworkGrant{Network: spec.NetworkNone})
	r.Rewiring = true
	if err := s.session.Keep(r); err != nil {
		return err
	}
	if _, err := s.connect(spec.NetworkFull, r); err != nil {
		return err
	}
	r.Rewiring = false
	return s.session.Keep(r)
}

// endRewiring ends an interrupted change of the network: it makes the links of the record anew.
// A sandbox that cannot be connected has no network, and a note about that.
func (s *Sandbox) endRewiring() error {
	r, err := record.Read(s.session.Path())
	if err != nil || !r.Rewiring {
		return err
	}
	if err := s.launcher.keepLevel(s.session.ID, r); err != nil {
		return err
	}
	wanted := r
	r.Config = r.Config.WithNetwork(spec.NetworkGrant{Network: spec.NetworkNone})
	if _, err := s.connect(spec.NetworkFull, r); err != nil {
		return err
	}
	if wanted.Config.Network == spec.NetworkFull {
		if _, err := s.connect(spec.NetworkNone, wanted); err != nil {
			wanted.Notes = append(wanted.Notes, fmt.Sprintf("the sandbox has lost its network: an interrupted change of it could not be finished: %v", err))
			return s.close(wanted)
		}
	}
	wanted.Rewiring = false
	return s.session.Keep(wanted)
}

// keepLevel brings the level of a record to disk.
func (l *Launcher) keepLevel(id string, r record.Record) error {
	return l.levels().Raise(id, ratchet.Level{Sensitivity: r.Config.Sensitivity, UID: r.UID})
}

// keepLevelOf keeps the level of a sandbox whose directory is about to go, although its owner has
// not removed the sandbox. A sandbox that ends with its creator needs no level.
func (l *Launcher) keepLevelOf(id string, state *statedir.Dir) error {
	r, err := record.Read(state.Path)
	if err != nil || r.Tied {
		return nil //nolint:nilerr // a sandbox without a record was never up, or has its level on disk
	}
	return l.keepLevel(id, r)
}

// forgetLevel forgets the level of a name without a sandbox, if is returns true for a sandbox of
// the user that reached the level.
func (l *Launcher) forgetLevel(id string, is func(record.Record, error) bool) error {
	level, err := l.levels().Of(id)
	if !is(record.Record{UID: level.UID}, err) {
		return nil
	}
	return l.levels().Forget(id)
}

// inherit raises the sensitivity of a sandbox that is being made to that of the snapshot with
// which the sandbox begins, and of an earlier sandbox of the name.
func (m *making) inherit() error {
	asked := m.request.Config
	level, err := m.launcher.levels().Of(m.id)
	if err != nil {
		return err
	}
	raised := asked.Raised(level.Sensitivity)
	if m.request.From != "" {
		s, err := m.launcher.layers.ReadSnapshot(m.request.From, m.from.UID)
		if err != nil {
			return err
		}
		raised = raised.Raised(s.Config.Sensitivity)
	}
	if raised.Network != asked.Network {
		m.notes = append(m.notes, fmt.Sprintf("the sandbox has the network %s in place of %s: its files have the sensitivity %s",
			raised.Network, asked.Network, raised.Sensitivity))
	}
	m.request.Config = raised
	return nil
}
