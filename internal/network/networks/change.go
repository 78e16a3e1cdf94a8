package networks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/ratchet"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Change changes the network of a sandbox that is up, raises its sensitivity, or both. A stricter
// network holds before Change returns, also for open connections. Processes and files stay. After an error
// of the router the sandbox has no network, also if ctx ended the wait for the router. The caller must
// hold the sandbox.
//
// Errors: *[fault.ConfigError], also for a network that the sensitivity does not permit.
func (n Networks) Change(ctx context.Context, box *record.Sandbox, want protocol.NetworkRequest) (spec.NetworkChange, error) {
	r, err := record.Read(box.Path())
	if err != nil {
		return spec.NetworkChange{}, err
	}
	next := r
	if next.Config, err = r.Config.Changed(want.Grant, want.Sensitivity); err != nil {
		return spec.NetworkChange{}, fault.Refusal(err)
	}
	if want.Grant != nil {
		next.Named, next.Upstream = want.Named, want.Upstream
	}
	if next.Config.UpstreamProxy == "" {
		next.Upstream = nil
	}
	if err := checkUpstream(next.Config, next.Upstream); err != nil {
		return spec.NetworkChange{}, fault.Refusal(err)
	}
	if err := n.checkChange(ctx, box.ID, r.Config, next.Config); err != nil {
		return spec.NetworkChange{}, err
	}
	if !r.Tied { // before the change: without the level on disk, the sandbox would lose its network
		if err := n.levels().CanRaise(ratchet.Owner{ID: box.ID, UID: r.UID}, next.Config.Sensitivity); err != nil {
			return spec.NetworkChange{}, fault.Refusal(err)
		}
	}
	// The same rules again can open a sandbox that has connected since.
	isSame := next.Config.Grant().Equal(r.Config.Grant()) && reflect.DeepEqual(next.Upstream, r.Upstream) && (want.Grant == nil || len(want.Grant.Allow) == 0)
	cut, err := n.rewire(ctx, box, r, next, isSame)
	return spec.NewNetworkChange(r.Config, next.Config, cut), err
}

// checkChange refuses a network that the sandbox cannot have.
func (n Networks) checkChange(ctx context.Context, id string, now, next spec.Config) error {
	if err := Check(next); err != nil {
		return fault.Refusal(err)
	}
	var limit *spec.FieldError
	isOther := next.Network != now.Network && next.Network != spec.NetworkNone // a network that the sandbox has may stay
	if isOther && errors.As(next.CheckNetworkLimits(), &limit) {
		return fault.Refusal(&spec.FieldError{Field: "network", Problem: fmt.Sprintf(
			"this sandbox has the limit %s, and the network %q cannot have that limit; make another sandbox",
			strings.TrimPrefix(limit.Field, "limits."), next.Network)})
	}
	return n.checkQuota(ctx, id, now, next)
}

// rewire changes the links of the sandbox to those of the next record. The record is the intent:
// if this process is killed on the way, the next one that opens the sandbox goes on.
func (n Networks) rewire(ctx context.Context, box *record.Sandbox, r, next record.Record, isSame bool) (cut int, err error) {
	isRaised := next.Config.Sensitivity.Above(r.Config.Sensitivity)
	if isSame && !isRaised {
		return 0, nil
	}
	next.Rewiring = true
	if err := box.Keep(next); err != nil {
		if r.Config.Network == spec.NetworkNone {
			return 0, err // nothing has changed
		}
		return 0, n.takeNetworkAfter(ctx, err, box, next) // the new network may be a stricter one
	}
	if err := n.KeepLevel(box.ID, next); err != nil {
		return 0, n.takeNetworkAfter(ctx, err, box, next)
	}
	if !isSame {
		if cut, err = n.connect(ctx, box, r.Config.Grant(), &next, false); err != nil {
			return cut, n.takeNetworkAfter(ctx, err, box, next)
		}
	}
	next.Rewiring = false
	return cut, box.Keep(next)
}

// connect changes the links of the sandbox from one network to that of the record. The record gets
// the new addresses. With late, the rules were made earlier, and open no other sandbox.
func (n Networks) connect(ctx context.Context, box *record.Sandbox, from spec.NetworkGrant, next *record.Record, late bool) (cut int, err error) {
	namespace, err := record.OpenNetwork(next.Init)
	if err != nil {
		return 0, box.Why(ctx, &fault.SandboxError{ID: box.ID, Err: fault.ErrNotRunning})
	}
	defer namespace.Close()
	names, err := n.namesOf(box.ID)
	if err != nil {
		return 0, err
	}
	if from.Network != next.Config.Network {
		*next = Connected(*next, nil)
		if cut, err = n.leave(ctx, namespace, from.Network, names); err != nil {
			return cut, err
		}
	}
	var more int
	switch next.Config.Network {
	case spec.NetworkFull:
		more, err = n.connectFull(ctx, namespace, names, from, next, late)
	case spec.NetworkProxied:
		more, err = n.connectProxied(ctx, namespace, names, from, *next, late)
	}
	if err == nil {
		err = n.republish(ctx, namespace, names, from, *next)
	}
	return cut + more, err
}

// anyNetwork stands for a grant that is not known.
var anyNetwork = spec.NetworkGrant{}

// leave takes a network from the sandbox, and returns the number of its sockets that have ended. Each network
// is taken if the present one is not known.
func (n Networks) leave(ctx context.Context, namespace *os.File, network spec.Network, names record.Names) (cut int, err error) {
	if network == spec.NetworkFull || network == anyNetwork.Network && n.hasRouter() {
		cut, err = n.router().Detach(ctx, namespace, linkName(names))
	}
	if network == spec.NetworkProxied || network == anyNetwork.Network && n.hasEgress() {
		more, left := n.proxied().leave(ctx, namespace, egressKey(names))
		cut, err = cut+more, errors.Join(err, left)
	}
	return cut, err
}

// connectFull connects the sandbox with the router, or changes the connection.
func (n Networks) connectFull(
	ctx context.Context, namespace *os.File, names record.Names, from spec.NetworkGrant, next *record.Record, late bool,
) (cut int, err error) {
	member, err := newMember(names, *next)
	if err != nil {
		return 0, err
	}
	member.Late = late
	out := n.router()
	if from.Network == spec.NetworkFull {
		cut, err = out.Regrant(ctx, namespace, member)
	} else {
		var addresses []netip.Addr
		addresses, err = out.Attach(ctx, namespace, member)
		*next = Connected(*next, addresses)
	}
	return cut, err
}

// connectProxied admits the sandbox to the proxied network, or changes its rules there.
func (n Networks) connectProxied(
	ctx context.Context, namespace *os.File, names record.Names, from spec.NetworkGrant, next record.Record, late bool,
) (cut int, err error) {
	p, err := newProxied(names, next)
	if err != nil {
		return 0, err
	}
	if from.Network == spec.NetworkProxied {
		return n.proxied().regrant(ctx, namespace, p)
	}
	if late {
		return 0, n.proxied().admitAgain(ctx, namespace, p)
	}
	return 0, n.proxied().admit(ctx, namespace, p)
}

// namesOf are the names of the sandbox's objects, which a network needs.
func (n Networks) namesOf(id string) (record.Names, error) {
	names, isKnown, err := n.NamesOf(id)
	if err == nil && !isKnown {
		err = fmt.Errorf("sandbox %s was made by an older release; make another sandbox for another network", id)
	}
	return names, err
}

// takeNetworkAfter takes the network from the sandbox, and adds that to the cause, which is the error of
// a change. It does so also if the caller's context has ended, or if the record cannot be written: else
// the sandbox could keep a network that it must not have.
func (n Networks) takeNetworkAfter(ctx context.Context, cause error, box *record.Sandbox, r record.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statedir.CleanupTime)
	defer cancel()
	r.Config, r.Upstream = r.Config.WithNetwork(spec.NetworkGrant{Network: spec.NetworkNone}), nil
	r.Rewiring = true
	kept := box.Keep(r)
	if kept != nil { // the record still has the earlier network, which Restore must not bring back
		kept = errors.Join(kept, n.withhold(ctx, box.ID))
	}
	if _, err := n.connect(ctx, box, anyNetwork, &r, true); err != nil {
		return errors.Join(cause, kept, err)
	}
	if kept == nil {
		r.Rewiring = false
		kept = box.Keep(r)
	}
	after := fmt.Errorf("%w; the sandbox has no network now", cause)
	if kept == nil || kept.Error() == cause.Error() {
		return after
	}
	return errors.Join(after, kept)
}

// EndChange finishes an interrupted change of the network: it makes the links of the record again.
// If that fails, the sandbox has no network, and a note says so. If ctx ended the wait for the
// router, the change stays interrupted. The caller must hold the sandbox.
func (n Networks) EndChange(ctx context.Context, box *record.Sandbox) error {
	r, err := record.Read(box.Path())
	if err != nil || !r.Rewiring {
		return err
	}
	wanted := r
	r.Config = r.Config.WithNetwork(spec.NetworkGrant{Network: spec.NetworkNone})
	if _, err := n.connect(ctx, box, anyNetwork, &r, true); err != nil {
		return err
	}
	if err := n.KeepLevel(box.ID, wanted); err != nil { // the sandbox stays without a network: its level may not permit the earlier one
		return err
	}
	wanted = Connected(wanted, nil)
	if wanted.Config.Network != spec.NetworkNone || len(wanted.Config.Publish) > 0 {
		if _, err := n.connect(ctx, box, r.Config.Grant(), &wanted, true); err != nil {
			if ctx.Err() != nil {
				return err
			}
			return n.endWithout(ctx, box, wanted, fmt.Errorf("finish an interrupted change of its network: %w", err))
		}
	}
	wanted.Rewiring = false
	return box.Keep(wanted)
}

// endWithout leaves a sandbox without a network, with the cause in a note.
func (n Networks) endWithout(ctx context.Context, box *record.Sandbox, r record.Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statedir.CleanupTime)
	defer cancel()
	r.Notes = append(r.Notes, fmt.Sprintf("the sandbox has no network: %v", cause))
	r.Upstream = nil
	r.Config = r.Config.WithNetwork(spec.NetworkGrant{Network: spec.NetworkNone})
	if _, err := n.connect(ctx, box, anyNetwork, &r, true); err != nil {
		return err
	}
	r.Rewiring = false
	return box.Keep(r)
}
