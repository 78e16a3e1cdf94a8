package router

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// An attack is a few packets of a sandbox. With arrives, at least one of them with the attack's
// name comes to the other end: so the test's eyes are open.
type attack struct {
	name    string
	arrives bool
	packets []packet
}

// marker is the text by which packets of the attack are found.
func (a attack) marker() string { return marker(a.name) }

func marker(name string) string { return "<" + name + ">" }

// An arena is a world with sandboxes, and with witnesses of what arrives.
type arena struct {
	*world
	one, two               *os.File
	one4, one6, two4, two6 string
	lan, onHost, onTwo     *witness
}

// lateIPv4 and lateIPv6 are addresses that the host gets after the sandboxes are connected.
const lateIPv4, lateIPv6 = "8.8.4.4", "2600:8::4"

func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{world: newWorld(t)}
	netnstest.Shell(t, a.internet, `for a in 9.9.9.10/24 2600:9::10/64 10.0.0.9/32 fd00::9/128; do ip address add $a dev lan; done`)
	netnstest.Shell(t, a.host, `ip link add bridge type bridge && ip link set bridge addrgenmode none && ip address add 172.17.0.1/16 dev bridge && ip link set bridge up`)
	a.one = a.attach(t, Member{
		Link: "s-one", Number: 1,
		Allow: rules(t, "10.0.0.9:80", "[fd00::9]:80", "172.17.0.0/16", "9.9.9.0/31"),
		Deny:  rules(t, internetIPv4+":90", "["+internetIPv6+"]:90", "9.9.9.10", "2600:9::10"),
	})
	a.two = a.attach(t, Member{Link: "s-two", Number: 2})
	netnstest.Shell(t, a.host, "ip address add "+lateIPv4+"/32 dev lo; ip address add "+lateIPv6+"/128 dev lo")
	a.one4, a.two4 = ipv4Of(t, a.one), ipv4Of(t, a.two)
	a.one6, a.two6 = ipv6Of(t, a.one), ipv6Of(t, a.two)
	a.lan, a.onTwo = watchDevice(t, a.internet, "lan"), watchDevice(t, a.two, inside)
	a.onHost = watchInput(t, a.host)
	return a
}

func ipv6Of(t *testing.T, sandbox *os.File) string {
	t.Helper()
	return netnstest.Shell(t, sandbox, "ip -6 -o address show eth0 scope global | sed 's/.*inet6 //;s/\\/.*//'")
}

// runAttacks sends the attacks, and judges each by the packets that arrived.
func (a *arena) runAttacks(t *testing.T, attacks []attack) {
	t.Helper()
	a.send(t, attacks...)
	a.send(t, attack{packets: []packet{udpPacket(a.one4, internetIPv4, 80, marker("end"))}})
	a.wait(t, marker("end"))
	time.Sleep(200 * time.Millisecond) // for packets that take another way
	for _, x := range attacks {
		if got := a.lan.sawText(x.marker()); got != x.arrives {
			t.Errorf("%s: arrived outside: %v, want %v", x.name, got, x.arrives)
		}
		if a.onHost.sawText(x.marker()) {
			t.Errorf("%s: arrived at the host", x.name)
		}
		if a.onTwo.sawText(x.marker()) {
			t.Errorf("%s: arrived at another sandbox", x.name)
		}
	}
	if a.lan.sawProtocol(shortProtocol) {
		t.Error("a packet without room for ports arrived outside")
	}
	if a.lan.sawText(string(net.ParseIP(a.one4).To4())) || a.lan.sawText(string(net.ParseIP(a.one6))) {
		t.Error("a packet with the sandbox's own address arrived outside")
	}
}

// wait waits until a packet with the text arrives outside.
func (a *arena) wait(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !a.lan.sawText(text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not arrive outside", text)
		}
	}
}

func (a *arena) send(t *testing.T, attacks ...attack) {
	t.Helper()
	var frames [][]byte
	for _, x := range attacks {
		for _, p := range x.packets {
			frames = append(frames, p.frame())
		}
	}
	sendFrames(t, a.one, frames...)
}

// sendFrames sends from the sandbox's device.
func sendFrames(t *testing.T, sandbox *os.File, frames ...[]byte) {
	t.Helper()
	err := netns.Do(sandbox, func() error {
		device, err := net.InterfaceByName(inside)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: device.Index}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A witness keeps all packets that arrive somewhere.
type witness struct {
	mu  sync.Mutex
	all [][]byte // guarded by mu
}

func (w *witness) sawText(text string) bool {
	return w.sawAny(func(p []byte) bool { return bytes.Contains(p, []byte(text)) })
}

// sawProtocol says whether a frame with this protocol arrived.
func (w *witness) sawProtocol(number byte) bool {
	return w.sawAny(func(p []byte) bool {
		const ethernet, ipv4, ipv6 = 14, 9, 6
		return len(p) > ethernet+20 && (p[ethernet]>>4 == 4 && p[ethernet+ipv4] == number || p[ethernet]>>4 == 6 && p[ethernet+ipv6] == number)
	})
}

func (w *witness) sawAny(is func([]byte) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.all, is)
}

// listen keeps the packets of the socket.
func (w *witness) listen(t *testing.T, fd int) {
	t.Helper()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "packets")
	t.Cleanup(func() { f.Close() })
	go func() {
		for {
			b := make([]byte, 2048)
			n, err := f.Read(b)
			if err != nil {
				return
			}
			w.mu.Lock()
			w.all = append(w.all, b[:n])
			w.mu.Unlock()
		}
	}()
}

// watchDevice keeps all frames of a device.
func watchDevice(t *testing.T, namespace *os.File, name string) *witness {
	t.Helper()
	w := &witness{}
	everything := uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8)
	err := netns.Do(namespace, func() error {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		w.listen(t, fd)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: device.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// watchInput keeps all packets that the namespace takes for its own, at any address.
func watchInput(t *testing.T, namespace *os.File) *witness {
	t.Helper()
	w := &witness{}
	err := netns.Do(namespace, func() error {
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			for _, protocol := range []int{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, otherProtocol} {
				fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
				if err != nil {
					return err
				}
				w.listen(t, fd)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Sandboxes have no raw sockets. The router holds also where they had: packets of any shape
// arrive outside, at the host and at other sandboxes only where the rules allow them.
func TestPacketsOfAnyShapeObeyTheRules(t *testing.T) {
	a := newArena(t)
	a.runAttacks(t, slices.Concat(a.controls(), a.destinations(), a.fragments(), a.headers(), a.sources(), a.untracked()))
}

// controls are packets that arrive, and packets beside them that do not.
func (a *arena) controls() []attack {
	echo := func(name string) []byte { return []byte("\x00\x01\x00\x01" + marker(name)) }
	other := func(to, name string) packet {
		return packet{from: a.one4, to: to, protocol: otherProtocol, payload: []byte(marker(name))}
	}
	return []attack{
		{"plain", true, []packet{udpPacket(a.one4, internetIPv4, 80, marker("plain"))}},
		{"plain 6", true, []packet{udpPacket(a.one6, internetIPv6, 80, marker("plain 6"))}},
		{"a denied port", false, []packet{udpPacket(a.one4, internetIPv4, 90, marker("a denied port"))}},
		{"a denied port 6", false, []packet{udpPacket(a.one6, internetIPv6, 90, marker("a denied port 6"))}},
		{"an allowed port", true, []packet{udpPacket(a.one4, "10.0.0.9", 80, marker("an allowed port"))}},
		{"an allowed port 6", true, []packet{udpPacket(a.one6, "fd00::9", 80, marker("an allowed port 6"))}},
		{"port zero", false, []packet{udpPacket(a.one4, "10.0.0.9", 0, marker("port zero")), udpPacket(a.one6, "fd00::9", 0, marker("port zero"))}},
		{"a segment", true, []packet{segment(a.one4, internetIPv4, 80, ack, marker("a segment"))}},
		{"a segment to a denied port", false, []packet{
			segment(a.one4, internetIPv4, 90, ack, marker("a segment to a denied port")),
			segment(a.one4, internetIPv4, 90, syn, marker("a segment to a denied port")),
			segment(a.one6, internetIPv6, 90, syn|ack, marker("a segment to a denied port")),
		}},
		{"echo", true, []packet{icmpPacket(a.one4, internetIPv4, 8, echo("echo"))}},
		{"echo 6", true, []packet{icmpPacket(a.one6, internetIPv6, 128, echo("echo 6"))}},
		{"echo to a private address", false, []packet{
			icmpPacket(a.one4, "10.0.0.9", 8, echo("echo to a private address")), icmpPacket(a.one6, "fd00::9", 128, echo("echo to a private address")),
		}},
		{"another protocol", true, []packet{other(internetIPv4, "another protocol")}},
		{"another protocol to a denied address", false, []packet{other("9.9.9.10", "another protocol to a denied address")}},
		{"too short for ports", false, []packet{
			{from: a.one4, to: "9.9.9.10", protocol: shortProtocol, payload: []byte{1}},
			{from: a.one6, to: "2600:9::10", protocol: shortProtocol, payload: []byte{1}},
			{from: a.one6, to: "2600:9::10", protocol: unix.IPPROTO_NONE},
		}},
	}
}

// destinations are addresses that no sandbox reaches, in all forms.
func (a *arena) destinations() (all []attack) {
	for _, to := range []string{
		"0.0.0.0", "0.0.0.1", "10.0.0.9", "100.64.0.1", "127.0.0.1", "169.254.1.1", "168.63.129.16", "169.254.169.254", "172.16.0.1", "192.168.0.1",
		"198.18.0.1", "198.18.0.2", "224.0.0.1", "224.0.0.251", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		hostIPv4, "9.9.9.255", "9.9.9.0", lateIPv4, "172.17.0.1", a.two4, a.one4,
		"::", "::1", "::9.9.9.9", "::ffff:9.9.9.9", "::ffff:10.0.0.9", "64:ff9b::9.9.9.9", "64:ff9b::a00:9", "64:ff9b:1::a00:9", "2002:a00:9::1",
		"2001::1", "fd00::9", "fe80::1", "fe80::9", "fec0::1", "ff02::1", "ff02::2", "ff05::1", "ff0e::1", hostIPv6, lateIPv6, a.two6, a.one6,
	} {
		name := "to " + to
		from := a.one4
		if strings.Contains(to, ":") {
			from = a.one6
		}
		packets := []packet{
			udpPacket(from, to, 53, marker(name)), udpPacket(from, to, 8080, marker(name)), segment(from, to, 8080, syn, marker(name)),
			{from: from, to: to, protocol: otherProtocol, payload: []byte(marker(name))},
		}
		if to == "198.18.0.1" {
			packets = packets[1:] // the resolver answers
		}
		all = append(all, attack{name, false, packets})
	}
	return all
}

// fragments hide the ports of a packet, or contradict each other.
func (a *arena) fragments() []attack {
	long := strings.Repeat("-", 64)
	in := func(to, name string, port uint16, id uint16) packet {
		from := a.one4
		if strings.Contains(to, ":") {
			from = a.one6
		}
		p := udpPacket(from, to, port, long+marker(name))
		p.id = id
		return p
	}
	last := in(internetIPv4, "the last fragment alone", 90, 3).split(64)[1:]
	last6 := in(internetIPv6, "the last fragment alone", 90, 4).split(64)[1:]
	overlap := in(internetIPv4, "overlapping fragments", 90, 5).split(72)
	harmless := in(internetIPv4, "a harmless fragment", 80, 5).split(64)[:1]
	overlap6 := in(internetIPv6, "overlapping fragments", 90, 6).split(72)
	harmless6 := in(internetIPv6, "a harmless fragment", 80, 6).split(64)[:1]
	hidden := in(internetIPv6, "ports in the second fragment", 90, 7).behind(unix.IPPROTO_DSTOPTS, padding...)
	return []attack{
		{"fragments", true, in(internetIPv4, "fragments", 80, 1).split(64)},
		{"fragments 6", true, in(internetIPv6, "fragments 6", 80, 1).split(64)},
		{"fragments to a denied port", false, slices.Concat(
			in(internetIPv4, "fragments to a denied port", 90, 2).split(64), in(internetIPv6, "fragments to a denied port", 90, 2).split(64),
			in(internetIPv4, "fragments to a denied port", 90, 8).split(8), in(internetIPv6, "fragments to a denied port", 90, 8).split(8))},
		{"fragments to a port that is not allowed", false, slices.Concat(
			in("10.0.0.9", "fragments to a port that is not allowed", 81, 9).split(8), in("fd00::9", "fragments to a port that is not allowed", 81, 9).split(8))},
		{"the last fragment alone", false, slices.Concat(last, last6)},
		{"overlapping fragments", false, slices.Concat(harmless, overlap, harmless6, overlap6)},
		{"ports in the second fragment", false, hidden.split(8)},
		{"one fragment", false, []packet{in(internetIPv6, "one fragment", 90, 10).behind(unix.IPPROTO_FRAGMENT, atomic...)}},
	}
}

// headers come before the transport header.
func (a *arena) headers() []attack {
	with := func(name string, port uint16, options []byte) packet {
		p := udpPacket(a.one4, internetIPv4, port, marker(name))
		p.options = options
		return p
	}
	six := func(name string, port uint16) packet { return udpPacket(a.one6, internetIPv6, port, marker(name)) }
	return []attack{
		{"options", true, []packet{with("options", 80, noOptions)}},
		{"options to a denied port", false, []packet{with("options to a denied port", 90, noOptions)}},
		{"a route of the source", false, []packet{with("a route of the source", 80, looseRoute)}},
		{"hop-by-hop options", true, []packet{six("hop-by-hop options", 80).behind(unix.IPPROTO_HOPOPTS, padding...)}},
		{"destination options", true, []packet{six("destination options", 80).behind(unix.IPPROTO_DSTOPTS, padding...)}},
		{"denied behind hop-by-hop options", false, []packet{six("denied behind hop-by-hop options", 90).behind(unix.IPPROTO_HOPOPTS, padding...)}},
		{"denied behind destination options", false, []packet{six("denied behind destination options", 90).behind(unix.IPPROTO_DSTOPTS, padding...)}},
		{"denied behind a route", false, []packet{six("denied behind a route", 90).behind(unix.IPPROTO_ROUTING, routing...)}},
		// An authentication header is a protocol of its own, as in IPv4: no peer takes the packet without a key.
		{"authenticated to a denied address", false, []packet{udpPacket(a.one6, "2600:9::10", 80, marker("authenticated to a denied address")).behind(unix.IPPROTO_AH, authentic...)}},
		{"denied behind many headers", false, []packet{
			six("denied behind many headers", 90).behind(unix.IPPROTO_DSTOPTS, padding...).behind(unix.IPPROTO_DSTOPTS, padding...).behind(unix.IPPROTO_HOPOPTS, padding...),
		}},
		{"denied behind a fragment's header", false, []packet{six("denied behind a fragment's header", 90).behind(unix.IPPROTO_FRAGMENT, atomic...).behind(unix.IPPROTO_DSTOPTS, padding...)}},
		{"headers to a denied address", false, []packet{
			udpPacket(a.one6, "2600:9::10", 80, marker("headers to a denied address")).behind(unix.IPPROTO_MH, padding...),
			udpPacket(a.one6, "2600:9::10", 80, marker("headers to a denied address")).behind(unix.IPPROTO_DSTOPTS, 255, 1, 4, 0, 0, 0, 0),
		}},
	}
}

// sources are not the sandbox's.
func (a *arena) sources() (all []attack) {
	for _, from := range []string{
		a.two4, hostIPv4, "9.9.9.77", "0.0.0.0", "127.0.0.1", "10.1.2.3", "255.255.255.255", "224.0.0.1", internetIPv4,
		a.two6, hostIPv6, "2600:9::77", "::", "::1", "fe80::1", "fe80::9", "fd00::1", "::ffff:9.9.9.77",
	} {
		name := "from " + from
		outside, host, two := internetIPv4, hostIPv4, a.two4
		if strings.Contains(from, ":") {
			outside, host, two = internetIPv6, hostIPv6, a.two6
		}
		all = append(all, attack{name, false, []packet{
			udpPacket(from, outside, 80, marker(name)), segment(from, outside, 80, syn, marker(name)),
			udpPacket(from, host, 80, marker(name)), udpPacket(from, two, 80, marker(name)),
		}})
	}
	return all
}

// untracked packets are those that connection tracking refuses or does not know.
func (a *arena) untracked() []attack {
	broken := udpPacket(a.one4, "10.0.0.9", 80, marker("a wrong checksum"))
	broken.payload[6] ^= 1
	broken6 := udpPacket(a.one6, "fd00::9", 80, marker("a wrong checksum"))
	broken6.payload[6] ^= 1
	// A peer's answer in a connection of the sandbox, as an ICMP error shows it.
	flow := udpPacket(a.one4, internetIPv4, 80, marker("plain"))
	answer := packet{from: internetIPv4, to: a.one4, protocol: unix.IPPROTO_UDP, payload: slices.Concat([]byte{0, 80, 4000 >> 8, 4000 & 0xff}, flow.payload[4:8])}
	shown := func(name string) packet {
		p := answer
		p.payload = append(slices.Clone(p.payload), marker(name)...)
		return p
	}
	redirect := append([]byte{10, 0, 0, 9}, quotedPacket(shown("a redirect"))...)
	return []attack{
		{"a wrong checksum", false, []packet{broken, broken6}},
		{"an error about a connection", false, []packet{icmpPacket(a.one4, internetIPv4, 3, quotedPacket(shown("an error about a connection"), 0, 0, 0, 0))}},
		{"an error to another address", false, []packet{
			icmpPacket(a.one4, "10.0.0.9", 3, quotedPacket(shown("an error to another address"), 0, 0, 0, 0)),
			icmpPacket(a.one4, hostIPv4, 3, quotedPacket(shown("an error to another address"), 0, 0, 0, 0)),
			icmpPacket(a.one4, a.two4, 3, quotedPacket(shown("an error to another address"), 0, 0, 0, 0)),
		}},
		{"a redirect", false, []packet{icmpPacket(a.one4, internetIPv4, 5, redirect), icmpPacket(a.one4, hostIPv4, 5, redirect)}},
		{"neighbour discovery", false, []packet{
			icmpPacket(a.one6, internetIPv6, 133, []byte("\x00\x00\x00\x00"+marker("neighbour discovery"))),
			icmpPacket(a.one6, internetIPv6, 134, []byte("\x40\x00\x07\x08\x00\x00\x00\x00\x00\x00\x00\x00"+marker("neighbour discovery"))),
			icmpPacket(a.one6, internetIPv6, 136, append(net.ParseIP(internetIPv6), marker("neighbour discovery")...)),
			icmpPacket(a.one6, internetIPv6, 137, append(net.ParseIP(internetIPv6), marker("neighbour discovery")...)),
			icmpPacket(a.one6, internetIPv6, 143, []byte("\x00\x00\x00\x00"+marker("neighbour discovery"))),
		}},
	}
}

// A sandbox's message about a connection, such as an ICMP error, reaches neither the peer nor another sandbox
// that has the connection.
func TestMessagesAboutConnectionsGoNowhere(t *testing.T) {
	a := newArena(t)
	var attacks []attack
	for _, x := range []struct {
		unreachable    byte
		one, two, peer string
	}{{3, a.one4, a.two4, internetIPv4}, {1, a.one6, a.two6, internetIPv6}} {
		sent := udpPacket(x.two, x.peer, 80, marker("of two to "+x.peer))
		sendFrames(t, a.two, sent.frame())
		a.wait(t, marker("of two to "+x.peer))
		answer := packet{from: x.peer, to: x.two, protocol: unix.IPPROTO_UDP, payload: slices.Concat(sent.payload[2:4], sent.payload[:2], sent.payload[4:8])}
		shown := func(p packet, name string) []byte {
			p.payload = append(slices.Clone(p.payload[:8]), marker(name)...)
			return quotedPacket(p, 0, 0, 0, 0)
		}
		toPeer, toTwo := "to the peer "+x.peer, "to two about "+x.peer
		attacks = append(attacks,
			attack{toPeer, false, []packet{icmpPacket(x.one, x.peer, x.unreachable, shown(answer, toPeer))}},
			attack{toTwo, false, []packet{icmpPacket(x.one, x.two, x.unreachable, shown(sent, toTwo))}},
		)
	}
	a.runAttacks(t, attacks)
}

// Tricks on the link: the router's and the host's addresses, routes and neighbours stay as they
// are, and frames to other hardware addresses go nowhere.
func TestTheLinkTeachesTheRouterNothing(t *testing.T) {
	a := newArena(t)
	view := func() string {
		const tables = "ip -o address; ip route show table all; ip -6 route show table all; ip rule; "
		router, err := a.router.namespace()
		if err != nil {
			t.Fatal(err)
		}
		defer router.Close()
		// The host can send a neighbour solicitation at any time. The router then learns the host's own address.
		neighbours := fmt.Sprintf("ip neigh | grep -v '^fe80::73:72ff:fe00:1 dev uplink lladdr %s '", outerMAC)
		return netnstest.Shell(t, router, tables+neighbours) + "\n" + netnstest.Shell(t, a.host, tables+"ip neigh show nud permanent")
	}
	before := view()
	for end := time.Now().Add(patience); strings.Contains(before, "tentative") && time.Now().Before(end); before = view() {
		time.Sleep(50 * time.Millisecond)
	}
	everyone := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	var frames [][]byte
	for _, claimed := range []string{"169.254.1.1", hostIPv4, a.two4, internetIPv4, "198.18.0.1"} {
		for _, operation := range []byte{1, 2} {
			address := net.ParseIP(claimed).To4()
			frames = append(frames, ethernet(everyone, unix.ETH_P_ARP,
				[]byte{0, 1, 8, 0, 6, 4, 0, operation}, innerMAC, address, everyone, address))
		}
	}
	advertised := slices.Concat([]byte{64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0},
		[]byte{3, 4, 64, 0xc0, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0}, []byte(net.ParseIP("2600:7::")))
	neighbour := slices.Concat([]byte{0x20, 0, 0, 0}, []byte(net.ParseIP(internetIPv6)), []byte{2, 1}, []byte(innerMAC))
	offer := udpPacket("0.0.0.0", "255.255.255.255", 68, marker("an offer of DHCP"))
	for _, from := range []string{"fe80::9", "fe80::1", a.one6} {
		for _, p := range []packet{icmpPacket(from, "ff02::1", 134, advertised), icmpPacket(from, "ff02::1", 136, neighbour), icmpPacket(from, "ff02::2", 133, make([]byte, 4))} {
			frame := p.frame()
			const hopLimit = 14 + 7
			frame[hopLimit] = 255
			frames = append(frames, frame)
		}
	}
	whole := udpPacket(a.one4, internetIPv4, 80, marker("another hardware address")).frame()[14:]
	tagged := slices.Concat([]byte{0, 7, 8, 0}, whole)
	frames = append(frames, offer.frame(),
		ethernet(everyone, unix.ETH_P_IP, whole), ethernet([]byte{2, 0, 0, 0, 0, 9}, unix.ETH_P_IP, whole),
		ethernet([]byte{1, 0, 0x5e, 0, 0, 1}, unix.ETH_P_IP, whole), ethernet(outerMAC, unix.ETH_P_8021Q, tagged))
	sendFrames(t, a.one, frames...)
	a.runAttacks(t, []attack{{"an offer of DHCP", false, nil}, {"another hardware address", false, nil}})
	if after := view(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Routes, neighbours and addresses of the sandbox's own making change nothing.
func TestOwnRoutesLeadNowhere(t *testing.T) {
	testhost.Long(t)
	a := newArena(t)
	for _, n := range []*os.File{a.host, a.internet, a.two} {
		serve(t, n, "0.0.0.0:8080")
		serve(t, n, "[::]:8081")
	}
	netnstest.Shell(t, a.one, fmt.Sprintf(`ip route add %s/32 dev eth0; ip neigh add %s lladdr %s dev eth0
		ip route add 10.0.0.0/8 via 169.254.1.1 dev eth0 onlink; ip -6 route add %s/128 dev eth0; ip route add %s/32 dev eth0
		ip address add %s/32 dev eth0; ip link set eth0 promisc on; ip link set eth0 mtu 9000`, a.two4, a.two4, outerMAC, a.two6, hostIPv4, a.two4))
	for _, to := range []string{hostIPv4 + ":8080", lateIPv4 + ":8080", "172.17.0.1:8080", "10.0.0.9:8080", "[" + a.two6 + "]:8081", "[" + lateIPv6 + "]:8081"} {
		if got, err := exchange(a.one, "tcp", to); err == nil {
			t.Errorf("%s: %q", to, got)
		}
	}
	wantAnswer(t, a.two, internetIPv4+":8080", hostIPv4)
}

// The host's own redirections (DNAT), such as those of Docker's published ports, lead no sandbox to
// a container, also at addresses that the host got later.
func TestRedirectionsOfTheHostAreNoWay(t *testing.T) {
	a := newArena(t)
	container := netnstest.New(t)
	netnstest.Shell(t, a.host, "ip link add c0 type veth peer name eth0 netns /proc/self/fd/4 && ip link set c0 master bridge up", container)
	netnstest.Shell(t, container, "ip link set eth0 up && ip address add 172.17.0.2/16 dev eth0 && ip route add default via 172.17.0.1")
	serve(t, container, "0.0.0.0:80")
	netnstest.Shell(t, a.host, `echo 1 > /proc/sys/net/ipv4/ip_forward
		nft 'add table ip other; add chain ip other away { type nat hook prerouting priority dstnat; }
		add rule ip other away tcp dport 8080 dnat to 172.17.0.2:80; add rule ip other away udp dport 8080 dnat to 172.17.0.2:80'`)
	netnstest.Shell(t, a.internet, "ip route add "+lateIPv4+"/32 via "+hostIPv4)
	reaches(t, a.internet, hostIPv4+":8080", internetIPv4) // the follower sees that the host is a router now
	for _, address := range []string{hostIPv4, lateIPv4} {
		wantAnswer(t, a.internet, address+":8080", internetIPv4)
		wantRefusal(t, a.two, address+":8080")
	}
	wantRefusal(t, a.two, internetIPv4+":8080")
}

// Nothing comes in that the sandbox has not asked for, also by a neighbour that knows its address.
func TestNothingComesInUnasked(t *testing.T) {
	a := newArena(t)
	serve(t, a.one, "0.0.0.0:80")
	serve(t, a.one, "[::]:81")
	netnstest.Shell(t, a.internet, "ip route add 10.0.0.0/8 via "+hostIPv4+"; ip -6 route add fd00::/8 via "+hostIPv6)
	for _, from := range []*os.File{a.internet, a.two} {
		for network, to := range map[string]string{"tcp": a.one4 + ":80", "udp": a.one4 + ":80", "tcp6": "[" + a.one6 + "]:81", "udp6": "[" + a.one6 + "]:81"} {
			if got, err := exchangeWithin(from, network, to, 300*time.Millisecond); err == nil {
				t.Errorf("%s %s: %q", network, to, got)
			}
		}
	}
	wantAnswer(t, a.one, a.one4+":80", a.one4)
}

// A flood of one sandbox keeps no other sandbox from its connections and refusals.
func TestAFloodDisturbsNoOtherSandbox(t *testing.T) {
	testhost.Concurrent(t)
	a := newArena(t)
	serve(t, a.internet, "0.0.0.0:8080")
	var flood [][]byte
	for i := range 100 {
		port := uint16(1000 + i)
		for _, p := range []packet{
			icmpPacket(a.one4, internetIPv4, 8, make([]byte, 1000)), icmpPacket(a.one6, internetIPv6, 128, make([]byte, 1000)), icmpPacket(a.one4, hostIPv4, 8, make([]byte, 1000)),
			udpPacket(a.one4, hostIPv4, port, ""), udpPacket(a.one4, internetIPv4, port, ""), udpPacket(a.one6, a.two6, port, ""), udpPacket(a.two4, internetIPv4, port, ""),
			segment(a.one4, internetIPv4, port, syn, ""), icmpPacket(a.one4, internetIPv4, 5, make([]byte, 64)),
		} {
			flood = append(flood, p.frame())
		}
	}
	var flooding sync.WaitGroup
	flooding.Go(func() {
		for range 50 {
			sendFrames(t, a.one, flood...)
		}
	})
	const rounds, slowest = 20, 2500 * time.Millisecond
	slow := 0
	for range rounds {
		begin := time.Now()
		wantAnswer(t, a.two, internetIPv4+":8080", hostIPv4)
		if got, err := exchange(a.two, "tcp", hostIPv4+":8080"); err == nil {
			t.Errorf("the host: %q", got)
		}
		if time.Since(begin) > slowest {
			slow++
		}
	}
	if slow > rounds/4 { // on a busy machine some are
		t.Errorf("two answers and a refusal took more than %v in %d of %d rounds", slowest, slow, rounds)
	}
	flooding.Wait()
}
