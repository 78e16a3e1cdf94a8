package router

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// newNamespace makes the router's network namespace. The namespace forwards and takes no redirects.
func newNamespace() (*os.File, error) {
	namespace, err := netns.Create()
	if err != nil {
		return nil, err
	}
	err = netns.Do(namespace, func() error {
		for _, s := range []struct{ name, value string }{
			{"ipv4/ip_forward", "1"},
			{"ipv4/conf/all/send_redirects", "0"},
			{"ipv4/conf/default/send_redirects", "0"},
			{"ipv4/conf/all/accept_redirects", "0"},
			{"ipv4/conf/default/accept_redirects", "0"},
			{"ipv4/conf/all/accept_source_route", "0"},
			{"ipv4/icmp_ratemask", "0"}, // programs learn of each refusal
		} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", s.name), []byte(s.value), 0); err != nil {
				return err
			}
		}
		if !forwardsIPv6() {
			return nil
		}
		const noType = "0" // of no message
		err := os.WriteFile("/proc/sys/net/ipv6/icmp/ratemask", []byte(noType), 0)
		return errors.Join(err, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	if err != nil {
		namespace.Close()
		return nil, fmt.Errorf("set up the router's namespace: %w", err)
	}
	return namespace, nil
}

// forwardsIPv6 says whether single devices of the host can forward IPv6.
func forwardsIPv6() bool {
	_, err := os.Stat(setting{"ipv6", "default"}.path())
	return err == nil
}

// hasIPv6 tells whether a device can have addresses and neighbours of IPv6. A new device takes disable_ipv6 from the
// host's default. A device with an MTU below 1280 has no such file.
func hasIPv6(device string) (bool, error) {
	return readsZero(filepath.Join("/proc/sys/net/ipv6/conf", device, "disable_ipv6"))
}

// build makes the link between the host and a new router, and the router's table. What an
// interrupted build left on the host goes first.
func (o *lockedRouter) build() error {
	r := o.router
	if err := r.hostSide().remove(o.host); err != nil {
		return err
	}
	name := r.hostLink()
	var err error
	if o.state.MTU, err = linkMTU(o.host); err != nil {
		return err
	}
	if err := connect(o.host, name, o.namespace, uplink, o.state.MTU); err != nil {
		return err
	}
	has, err := hasIPv6(name)
	if err != nil {
		return err
	}
	if has && forwardsIPv6() {
		o.state.Local = localRange(r.seed())
	}
	outer, err := openEnd(o.host, name)
	if err != nil {
		return err
	}
	inner, err := openEnd(o.inner, uplink)
	if err != nil {
		return err
	}
	if err := o.takeRange(outer); err != nil {
		return err
	}
	link, err := o.host.LinkByName(name)
	if err != nil {
		return err
	}
	if err := o.state.write(o.host, link); err != nil {
		return err
	}
	a := o.state.addresses()
	for _, f := range a.families() {
		if err := joinRouter(outer, inner, a, f); err != nil {
			return err
		}
	}
	loopback, err := openEnd(o.inner, "lo")
	if err != nil {
		return err
	}
	if err := loopback.addAddress(resolverAddress.Addr()); err != nil {
		return err
	}
	f, err := openFirewall(o.namespace, tableName)
	if err != nil {
		return err
	}
	f.writeRouter(a)
	err = f.flush()
	if errors.Is(err, unix.ENOENT) { // of an expression that the kernel does not know
		return fmt.Errorf("the kernel lacks a part of nftables (modules nft_ct, nft_reject_inet, nft_connlimit and nft_limit): %w", errors.ErrUnsupported)
	}
	return err
}

// takeRange routes a free range of IPv4 addresses to the router. The route itself keeps other
// routers from the range.
func (o *lockedRouter) takeRange(outer end) error {
	return freeRanges(o.host, o.router.Range, o.router.seed(), func(p netip.Prefix) (bool, error) {
		a := ranges{V4: p}
		router := a.addressAt(ipv4, routerPlace)
		if err := outer.addNeighbour(router, innerMAC); err != nil {
			return false, err
		}
		err := outer.reaches(p, router)
		if errors.Is(err, errTaken) {
			return false, nil
		}
		o.state.Range = p
		return err == nil, err
	})
}

// joinRouter gives both ends the addresses, neighbours and routes of one family.
func joinRouter(outer, inner end, a ranges, f family) error {
	host, router := a.addressAt(f, hostPlace), a.addressAt(f, routerPlace)
	if err := inner.addAddress(router); err != nil {
		return err
	}
	if err := inner.addNeighbour(host, outerMAC); err != nil {
		return err
	}
	if err := inner.reaches(f.all, host); err != nil {
		return err
	}
	if f.bits == ipv4.bits {
		return nil // takeRange has done the host's side
	}
	if err := outer.addNeighbour(router, innerMAC); err != nil {
		return err
	}
	return outer.reaches(a.prefix(f), router)
}
