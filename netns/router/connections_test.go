package router

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// The kernel removes the list of a sandbox's connections by itself, also at the moment at which the sandbox is
// disconnected.
func TestListsOfConnectionsVanish(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	w.attach(t, Member{Link: "s-one", Number: 1})
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		stopped <- func() error {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				f, err := openFirewall(namespace, tableName)
				if err != nil {
					return err
				}
				set, element := f.existingSet(counted()), []nftables.SetElement{{Key: interfaceName("s-gone")}}
				if n%2 == 0 {
					f.noteError(f.conn.SetAddElements(set, element))
				} else {
					f.noteError(f.conn.SetDeleteElements(set, element))
				}
				_ = f.flush() // of an element that the other one has removed
			}
		}()
	}()
	for range 500 {
		if err := forgetQuotas(namespace, func(link string) bool { return link == "s-gone" }); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A sandbox that opens more connections than the bound learns so at once. The host tracks no more of
// them, and other sandboxes go on. Once the connections are gone, the sandbox can open others.
func TestASandboxHasABoundOfConnections(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	greedy, other := w.attach(t, Member{Link: "s-greedy", Number: 1}), w.attach(t, Member{Link: "s-other", Number: 2})
	source := ipv4Of(t, greedy)
	err := netns.Do(greedy, func() error {
		c, err := net.ListenPacket("udp4", ":0")
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range 2 * maxConnections {
			to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(internetIPv4), uint16(1024+i)))
			_, _ = c.WriteTo([]byte("?"), to) // may report the refusal of an earlier packet
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := tracked(t, w, source); got > maxConnections || got < maxConnections/2 {
		t.Errorf("the host tracks %d connections", got)
	}
	if got, err := exchange(greedy, "tcp", internetIPv4+":80"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("one more connection: %q, %v", got, err)
	}
	wantAnswer(t, other, internetIPv4+":80", hostIPv4)

	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	if err := forgetAll(namespace, netip.MustParseAddr(source)); err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, greedy, internetIPv4+":80", hostIPv4)
	w.detach(t, greedy, "s-greedy")
	if set := netnstest.Shell(t, namespace, "nft list set inet "+tableName+" "+counted().Name); strings.Contains(set, "s-greedy") {
		t.Errorf("left: %s", set)
	}
}

// The kernel removes the link of a router whose makers were killed, while another process removes the router.
func TestTheLinkOfARouterVanishes(t *testing.T) {
	testhost.Long(t)
	testhost.Concurrent(t)
	w := newWorld(t)
	err := netns.Do(w.host, func() error {
		host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer host.Close()
		for range 300 {
			made := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: w.router.hostLink()}, PeerName: "inner"}
			if err := host.LinkAdd(made); err != nil {
				return err
			}
			if err := host.LinkSetAlias(made, `{"range":"10.0.0.0/24"}`); err != nil {
				return err
			}
			var kernel sync.WaitGroup
			kernel.Go(func() { _ = host.LinkDel(made) }) // one of the two deletes it
			err := w.router.hostSide().remove(host)
			kernel.Wait()
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
