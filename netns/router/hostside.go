package router

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A hostSide is a router's side on the host: its device, with this name, and the rules and the table for that device.
type hostSide string

func (r Router) hostSide() hostSide { return hostSide(r.hostLink()) }

// table is the name of the table.
func (h hostSide) table() string { return tableName + "-" + string(h)[len(linkPrefix):] }

// openTable opens the table, and says whether the kernel has it.
func (h hostSide) openTable() (f *firewall, isThere bool, err error) {
	if f, err = openFirewall(nil, h.table()); err != nil {
		return nil, false, err
	}
	isThere, err = f.has(f.table.Name)
	return f, isThere, err
}

// forget removes the elements of sandboxes with these addresses from the table. The table can be gone.
func (h hostSide) forget(addresses []netip.Addr) error {
	f, isThere, err := h.openTable()
	if err != nil || !isThere {
		return err
	}
	for _, fam := range families {
		_, err := f.forgetElements(f.existingSet(guests(fam)), func(e nftables.SetElement) bool {
			a, ok := netip.AddrFromSlice(e.Key[:fam.address.Bytes])
			return !ok || slices.Contains(addresses, a)
		})
		if err != nil {
			return err
		}
	}
	return f.flush()
}

// remove removes all of the router from the host. Each of its steps can be repeated.
func (h hostSide) remove(host *netlink.Handle) error {
	name := string(h)
	var s state
	link, err := host.LinkByName(name)
	if isGone := isNoDevice(err); err == nil {
		if link.Attrs().Alias != "" {
			err = s.readFrom(link.Attrs()) // the link can vanish with a namespace that ends now
		}
		areOthers, e := restore(host, name, s)
		// The links of other sandboxes can be gone with their processes: no Detach forgets their connections.
		err = errors.Join(err, e, forgetRanges(s.addresses()), deleteLink(host, link)) // the link has the ranges
		// Two routers that end at once see each other. The last one without a device sees none.
		if areOthers {
			_, e = restore(host, name, s)
			err = errors.Join(err, e)
		}
	} else if isGone {
		err = nil
	}
	return errors.Join(err, removeRules(host, name), h.removeTable())
}

// removeTable looks first: a transaction of nftables takes some 10 ms, also without a change.
func (h hostSide) removeTable() error {
	f, isThere, err := h.openTable()
	if err != nil || !isThere {
		return err
	}
	f.conn.DelTable(f.table)
	if err := f.flush(); !errors.Is(err, unix.ENOENT) { // a tool of the host can have flushed the ruleset meanwhile
		return err
	}
	return nil
}
