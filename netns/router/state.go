package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkPrefix begins the names of the routers' devices on the host.
const linkPrefix = "sr-"

// A state is the part of the router that no other kernel object tells. The kernel keeps the
// state as the alias of the host's device: it goes with the device, and no firewall touches it.
type state struct {
	Range netip.Prefix `json:"range"`
	Local netip.Prefix `json:"local,omitzero"`
	MTU   int          `json:"mtu"`
	// Enabled and Switched are the settings that the routers switched on: see [state.noteSetting].
	Enabled  []string         `json:"enabled,omitempty"`
	Switched []switchedDevice `json:"switched,omitempty"`
	// table is the name of the router's table on the host. Only [others] sets it.
	table string
}

func (s state) addresses() ranges { return ranges{s.Range, s.Local} }

func (s *state) read(host *netlink.Handle, name string) error {
	link, err := host.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find the device %s: %w", name, err)
	}
	return s.readFrom(link.Attrs())
}

func (s *state) readFrom(a *netlink.LinkAttrs) error {
	if err := json.Unmarshal([]byte(a.Alias), s); err != nil {
		return fmt.Errorf("the alias of the device %s is no router's: %w", a.Name, err)
	}
	return nil
}

// maxAlias is the kernel's bound of an alias (IFALIASZ), without the zero byte.
const maxAlias = 255

func (s *state) fitsAlias() bool {
	text, err := json.Marshal(s)
	return err == nil && len(text) <= maxAlias
}

func (s *state) write(host *netlink.Handle, link netlink.Link) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := host.LinkSetAlias(link, string(text)); err != nil {
		return fmt.Errorf("note the state of %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// others are the states of the host's other routers.
func others(host *netlink.Handle, own string) ([]state, error) {
	links, err := listed(host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the host's devices: %w", err)
	}
	var found []state
	for _, l := range links {
		var s state
		a := l.Attrs()
		if a.Name != own && strings.HasPrefix(a.Name, linkPrefix) && json.Unmarshal([]byte(a.Alias), &s) == nil {
			s.table = hostSide(a.Name).table()
			found = append(found, s)
		}
	}
	return found, nil
}

// repairHost makes the missing parts on the host's side. Each of its steps can be repeated.
func (o *lockedRouter) repairHost() error {
	name := o.router.hostLink()
	link, err := o.host.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find the device %s: %w", name, err)
	}
	w, err := o.noteForwarding(link)
	if err != nil {
		return err
	}
	if err := o.repairTable(name, w.devices); err != nil {
		return err
	}
	if err := o.repairRules(name); err != nil {
		return err
	}
	return o.enableForwarding(link, w)
}

// repairTable writes the host's table if something has removed it, or if an older version has made it.
func (o *lockedRouter) repairTable(name string, devices []device) error {
	f, isThere, err := o.router.hostSide().openTable()
	if err == nil && isThere {
		if has, err := f.hasGuard(); has || err != nil {
			return err
		}
		f.conn.DelTable(f.table)
	}
	if err != nil {
		return err
	}
	f.writeHost(name, o.state.addresses())
	for _, fam := range families {
		names, err := o.guardedNames(fam, devices)
		if err != nil {
			return err
		}
		f.add(f.existingSet(guarded(fam)), nameElements(names))
	}
	if err := f.flush(); err != nil {
		return err
	}
	return o.openHost()
}

// has says whether the kernel has a table of this name.
func (f *firewall) has(table string) (bool, error) {
	tables, err := f.conn.ListTablesOfFamily(f.table.Family)
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table }), nil
}

// deleteLink deletes a link. The kernel may be deleting it with the namespace of its other end.
func deleteLink(host *netlink.Handle, link netlink.Link) error {
	if err := host.LinkDel(link); !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

func isNoDevice(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError))
}
