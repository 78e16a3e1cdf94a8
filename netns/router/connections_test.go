package router

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

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
