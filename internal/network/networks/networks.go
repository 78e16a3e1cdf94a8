// Package networks connects sandboxes with the router of their state root, and changes the network
// and the sensitivity of sandboxes that are up. The record of a sandbox says which network it has.
package networks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/idrange"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	_ "github.com/sandbox-runtime/sandbox-runtime/internal/launcher/takeover" // the processes that this package starts
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress"
	"github.com/sandbox-runtime/sandbox-runtime/netns/router"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Networks are the networks of the sandboxes of one launcher.
type Networks struct{ record.Roots }

// routerDir is a directory of the state root. No container has a name with "@".
const routerDir = "@network"

func (n Networks) router() router.Router {
	r := RouterOf(n.State)
	r.Sandbox, r.Range = n.openNumber, n.NetworkRange
	return r
}

// openNumber opens the network namespace of the sandbox with a number of [idrange.Number]. A sandbox
// whose record cannot be read counts as one that has ended: no packets reach its sockets.
func (n Networks) openNumber(number uint32) (*os.File, error) {
	owners, err := idrange.Ranges{Data: n.Data, Root: n.State}.Owners()
	if err != nil {
		return nil, err
	}
	for _, o := range owners {
		if idrange.Number(o.Base) != number {
			continue
		}
		if r, err := record.Read(n.Dir(o.Sandbox)); err == nil {
			return record.OpenNetwork(r.Init)
		}
	}
	return nil, fs.ErrNotExist
}

// RouterOf is the router of a state root, also of one that has none.
func RouterOf(state string) router.Router {
	return router.Router{Dir: filepath.Join(state, routerDir), Resolv: "/etc/resolv.conf"}
}

// hasRouter is false if no sandbox of the state root was ever connected.
func (n Networks) hasRouter() bool { return statedir.Exists(n.router().Dir) }

// linkName is the name of the sandbox's device in the router. No two sandboxes ever have the same
// names, so no two have the same link.
func linkName(n record.Names) string {
	hash := sha256.Sum256([]byte(n.Cgroup))
	return "s-" + hex.EncodeToString(hash[:6])
}

// newMember describes the sandbox of a record for the router.
func newMember(n record.Names, r record.Record) (router.Member, error) {
	m := router.Member{
		Link: linkName(n), Number: idrange.Number(r.IDBase),
		Rate: uint64(r.Config.Limits.NetworkRate), Quota: uint64(r.Config.Limits.NetworkQuota),
	}
	named := slices.DeleteFunc(slices.Clone(r.Config.Allow), func(rule string) bool {
		return r.UID != 0 && !slices.Contains(r.Named, rule)
	})
	var err error
	if m.Allow, err = addressRules(r.Config.Allow); err == nil {
		m.Named, err = addressRules(named)
	}
	if err == nil {
		m.Deny, err = addressRules(r.Config.Deny)
	}
	return m, err
}

func addressRules(texts []string) (rules []spec.AddressRule, err error) {
	for _, text := range texts {
		rule, err := spec.ParseAddressRule(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// Attach connects a sandbox that is being made, if the record asks for that, and returns the
// sandbox's addresses.
func (n Networks) Attach(ctx context.Context, namespace func() (*os.File, error), names record.Names, r record.Record) ([]netip.Addr, error) {
	switch r.Config.Network {
	case spec.NetworkFull:
	case spec.NetworkProxied:
		return nil, n.attachProxied(ctx, namespace, names, r)
	default:
		return nil, nil
	}
	member, err := newMember(names, r)
	if err != nil {
		return nil, err
	}
	inside, err := namespace()
	if err != nil {
		return nil, err
	}
	addresses, err := n.router().Attach(ctx, inside, member)
	return addresses, attachError(r.Config.Network, err)
}

// attachError is the error of a new sandbox that has to be in the network.
func attachError(network spec.Network, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = fault.Unavailable(err)
	}
	return fmt.Errorf("--network %s: %w", network, err)
}

// onlyIPv4 is the note of a sandbox without IPv6.
const onlyIPv4 = "--network full reaches only IPv4 addresses: this host forwards no IPv6 for single devices (needs Linux 6.17, net.ipv6.conf.default.disable_ipv6=0 and an MTU of at least 1280)"

// Connected is the record with the present addresses of the sandbox. Without addresses the sandbox
// is disconnected.
func Connected(r record.Record, addresses []netip.Addr) record.Record {
	r.Addresses = addresses
	r.Notes = slices.DeleteFunc(slices.Clone(r.Notes), func(note string) bool { return note == onlyIPv4 })
	if len(addresses) > 0 && !slices.ContainsFunc(addresses, netip.Addr.Is6) {
		r.Notes = append(r.Notes, onlyIPv4)
	}
	return r
}

// Prune removes the links of sandboxes that are gone. known returns the ids of all sandboxes, also of
// half-made ones: the names are written before the sandbox is connected.
func (n Networks) Prune(ctx context.Context, known func() ([]string, error)) error {
	living := sync.OnceValues(func() (map[string]bool, error) {
		links := map[string]bool{}
		ids, err := known()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			names, isKnown, err := n.NamesOf(id)
			if err != nil {
				return nil, err
			}
			if isKnown {
				links[linkName(names)] = true
			}
		}
		return links, nil
	})
	isLive := func(link string) (bool, error) {
		links, err := living()
		return links[link], err
	}
	return errors.Join(n.router().Prune(ctx, isLive), n.proxied().prune(ctx, isLive))
}

// Disconnect ends the connection of a sandbox that is being removed. Its processes have ended. A
// half-made sandbox has no record, and may be connected.
func (n Networks) Disconnect(ctx context.Context, id string) error {
	if !n.hasRouter() && !n.hasEgress() {
		return nil
	}
	names, known, err := n.NamesOf(id)
	if err != nil || !known {
		return err
	}
	network := anyNetwork.Network
	if r, err := record.Read(n.Dir(id)); err == nil && !r.Rewiring {
		network = r.Config.Network
	}
	if isUnknown := network == anyNetwork.Network; isUnknown || network == spec.NetworkProxied || n.egress().Keeps(egressKey(names)) {
		err = n.egress().Dismiss(ctx, egressKey(names))
	}
	if network != spec.NetworkFull && network != anyNetwork.Network && !n.router().HasNote(linkName(names)) || !n.hasRouter() {
		return errors.Join(err, n.unpublish(ctx, names))
	}
	_, detached := n.router().Detach(ctx, nil, linkName(names))
	return errors.Join(err, detached)
}

// Traffic is the use of the network by a sandbox since its start.
func (n Networks) Traffic(ctx context.Context, id string) (spec.Traffic, error) {
	if !n.hasRouter() && !n.hasEgress() {
		return spec.Traffic{}, nil
	}
	names, known, err := n.NamesOf(id)
	if err != nil || !known {
		return spec.Traffic{}, err
	}
	var all spec.Traffic
	if n.hasRouter() {
		if all, err = n.router().Traffic(ctx, linkName(names)); err != nil {
			return all, err
		}
	}
	if !n.hasEgress() || !n.egress().Keeps(egressKey(names)) {
		return all, nil
	}
	counts, err := n.egress().Counts(ctx, egressKey(names))
	if errors.Is(err, egress.ErrUnknown) {
		return all, nil // the network's processes were killed
	}
	return withCounts(all, counts), err
}

// withCounts adds the counts of the proxied network. A worker that was taken over can report any counts.
func withCounts(t spec.Traffic, c egress.Counts) spec.Traffic {
	received, sent := bounded(c.Received), bounded(c.Sent)
	return spec.Traffic{
		Received: t.Received + received, Sent: t.Sent + sent, Charged: t.Charged + received + sent,
		Requests: bounded(c.Requests), Refused: bounded(c.Refused),
	}
}

// bounded is a count that does not overflow in a sum of a few.
func bounded(count uint64) int64 { return int64(min(count, math.MaxInt64/4)) }
