package router

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Detour is a destination that packets of the host reach, and packets of sandboxes do not, or by another way.
type Detour struct {
	// Destination is an address of the internet, or one in a network of the host.
	Destination netip.Addr
	// Fault describes the fate of the packets.
	Fault string
	// Fix tells the way out.
	Fix string
}

// Detours compares the kernel's routes for packets of the host with those for packets of sandboxes and their answers.
// Without a router there are none.
func (r Router) Detours() (found []Detour, err error) {
	if _, err := os.Stat(r.pinPath()); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	j := judge{host: host, name: r.hostLink()}
	if err := j.state.read(host, j.name); isNoDevice(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	destinations, err := j.destinations()
	if err != nil {
		return nil, err
	}
	for _, d := range destinations {
		detour, err := j.compare(d)
		if err != nil {
			return nil, err
		}
		if detour != nil && !slices.ContainsFunc(found, func(f Detour) bool { return f.Fault == detour.Fault && f.Fix == detour.Fix }) {
			found = append(found, *detour)
		}
	}
	return found, nil
}

// A judge asks the kernel for routes.
type judge struct {
	host  *netlink.Handle
	name  string // of the router's device
	state state
}

// destinations are addresses of the internet, and one in each network of the host's devices.
func (j judge) destinations() (found []netip.Addr, err error) {
	devices, err := networkDevices(j.host)
	if err != nil {
		return nil, err
	}
	for i, f := range families {
		if !j.state.addresses().prefix(f).IsValid() {
			continue
		}
		found = append(found, internet[i]...)
		list, err := listed(func() ([]netlink.Addr, error) { return j.host.AddrList(nil, f.number) })
		if err != nil {
			return nil, fmt.Errorf("list the host's addresses: %w", err)
		}
		for _, a := range list {
			isOfNetwork := slices.ContainsFunc(devices, func(d device) bool { return d.index == a.LinkIndex && d.isUp })
			own, ok := netip.AddrFromSlice(a.IP)
			bits, _ := a.Mask.Size()
			if own = own.Unmap(); !ok || !isOfNetwork || own.IsLinkLocalUnicast() || bits >= f.bits-1 {
				continue
			}
			network := netip.PrefixFrom(own, bits)
			for _, other := range []netip.Addr{own.Next(), own.Prev()} {
				if network.Contains(other) && other != network.Masked().Addr() {
					found = append(found, other)
					break
				}
			}
		}
	}
	return found, nil
}

// compare returns nil if the packets of sandboxes go the way of the host's, and the answers come back.
func (j judge) compare(to netip.Addr) (*Detour, error) {
	own, err := j.device(to, nil)
	if isNoRoute(err) || own == nil {
		return nil, nil // the host does not reach it
	}
	if err != nil {
		return nil, fmt.Errorf("find the host's route to %s: %w", to, err)
	}
	f := familyOf(to)
	sandbox := j.state.addresses().addressAt(f, firstSandbox)
	out, err := j.device(to, &netlink.RouteGetOptions{Iif: j.name, SrcAddr: sandbox.AsSlice(), Mark: mark})
	name := own.Attrs().Name
	sameRule := fmt.Sprintf("look at \"ip rule\": rules for \"iif lo\" or for users hold for the host's own packets alone; add the same rule for \"iif %s\"", j.name)
	switch {
	case err != nil:
		return &Detour{to, fmt.Sprintf("packets of sandboxes have no route (%v); those of the host leave by %s", err, name), sameRule}, nil
	case out == nil || out.Attrs().Index != own.Attrs().Index:
		return &Detour{to, fmt.Sprintf("packets of sandboxes leave by %s, those of the host by %s", nameOf(out), name), sameRule}, nil
	}
	return j.compareAnswers(f, to, sandbox, name)
}

// compareAnswers judges the way of the answers, which come in through the device.
func (j judge) compareAnswers(f family, from, sandbox netip.Addr, device string) (*Detour, error) {
	s := setting{f.name, device}
	always, err := forwardsAll(f.name)
	if err != nil {
		return nil, err
	}
	if isOff, err := s.isOff(); err != nil {
		return nil, err
	} else if isOff && !always {
		return &Detour{from, "answers that come in through " + device + " do not pass: its forwarding is off", "doctor --repair"}, nil
	}
	back, err := j.device(sandbox, &netlink.RouteGetOptions{Iif: device, SrcAddr: from.AsSlice(), Mark: mark})
	filter, unread := pathFilter(device)
	switch {
	case unread != nil:
		return nil, unread
	case err != nil && f.bits == ipv4.bits && filter > 0: // the error does not tell the reason since Linux 6.14
		return &Detour{from, "the filter of reverse paths (rp_filter) drops answers that come in through " + device, "doctor --repair"}, nil
	case err != nil:
		return &Detour{from, fmt.Sprintf("answers that come in through %s do not pass (%v)", device, err), "look at \"ip rule\" and \"ip route\""}, nil
	case back == nil || back.Attrs().Name != j.name:
		return &Detour{from, fmt.Sprintf("answers that come in through %s leave by %s, not by %s", device, nameOf(back), j.name),
			fmt.Sprintf("ip rule add to %s lookup main priority 1", j.state.addresses().prefix(f))}, nil
	}
	return nil, nil
}

// device is the device by which packets to the address leave, or nil if they stay on the host.
func (j judge) device(to netip.Addr, options *netlink.RouteGetOptions) (netlink.Link, error) {
	routes, err := j.host.RouteGetWithOptions(to.AsSlice(), options)
	if err != nil || len(routes) == 0 || routes[0].Type == unix.RTN_LOCAL {
		return nil, err
	}
	return j.host.LinkByIndex(routes[0].LinkIndex)
}

func nameOf(l netlink.Link) string {
	if l == nil {
		return "no device"
	}
	return l.Attrs().Name
}
