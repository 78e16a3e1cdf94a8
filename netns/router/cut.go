package router

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/sockets"
)

// endConnections ends the sandbox's TCP and UDP sockets that have a peer outside, except those that
// stays permits. endConnections returns the number of ended sockets.
func endConnections(sandbox *os.File, stays decision) (count int, err error) {
	err = netns.Do(sandbox, func() (err error) {
		count, err = sockets.End(func(protocol byte, local, peer netip.AddrPort) bool {
			return !peer.Addr().IsLoopback() && !stays(protocol, local, peer)
		})
		return err
	})
	if err != nil {
		return count, fmt.Errorf("end the sandbox's connections: %w", err)
	}
	return count, nil
}

// A decision says whether the connection of a sandbox's socket may go on.
type decision func(protocol byte, local, peer netip.AddrPort) bool

// noneStays is the decision for a sandbox without a network.
func noneStays(byte, netip.AddrPort, netip.AddrPort) bool { return false }

// forgetConnections removes the tracked connections of the sandbox's address from the namespace,
// except those that stays permits; nil is the caller's namespace. So a later sandbox with this
// address inherits no connection.
func forgetConnections(namespace *os.File, address netip.Addr, stays decision) error {
	return inNamespace(namespace, func() error {
		if none, err := tracksNothing(); err != nil || none {
			return err
		}
		family := netlink.InetFamily(familyOf(address).number)
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, flowFilter{address, stays}); err != nil {
			return fmt.Errorf("remove tracked connections of %s: %w", address, err)
		}
		return nil
	})
}

// tracksNothing says that the network namespace of the calling thread has no tracked connection. A list of them
// takes milliseconds, also of none: all network namespaces share one table, and the list visits all of its buckets.
func tracksNothing() (bool, error) {
	return readsZero("/proc/sys/net/netfilter/nf_conntrack_count")
}

// inNamespace calls f in a network namespace; nil is the caller's.
func inNamespace(namespace *os.File, f func() error) error {
	if namespace == nil {
		return f()
	}
	return netns.Do(namespace, f)
}

// forgetRanges removes the entries of all sandboxes of a router from the caller's connection tracking. A list
// takes milliseconds, so one list tells which families have such entries.
func forgetRanges(a ranges) error {
	if !a.V4.IsValid() { // the router was never whole
		return nil
	}
	if none, err := tracksNothing(); err != nil || none {
		return err
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_UNSPEC)
	isPart := errors.Is(err, netlink.ErrDumpInterrupted)
	if err != nil && !isPart {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	for _, f := range a.families() {
		filter := rangeFilter(a.prefix(f))
		if !isPart && !slices.ContainsFunc(flows, filter.MatchConntrackFlow) {
			continue
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.number), filter); err != nil {
			return fmt.Errorf("remove tracked connections of %s: %w", a.prefix(f), err)
		}
	}
	return nil
}

// A rangeFilter matches the tracked connections that an address in the range began.
type rangeFilter netip.Prefix

// MatchConntrackFlow implements [netlink.CustomConntrackFilter].
func (r rangeFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	source, ok := netip.AddrFromSlice(flow.Forward.SrcIP)
	return ok && netip.Prefix(r).Contains(source.Unmap())
}
