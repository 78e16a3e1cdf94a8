package router

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestASandboxReachesTheOutsideAndNothingElse(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"0.0.0.0:80", "[::]:81"} {
		serve(t, w.internet, n)
		serve(t, w.host, n)
	}
	netnstest.Shell(t, w.internet, "ip address add 10.0.0.9/32 dev lo; ip address add 169.254.169.254/32 dev lo")
	netnstest.Shell(t, w.host, "ip address add 8.8.4.4/32 dev lo")
	one := w.attach(t, Member{Link: "s-one", Number: 0})
	two := w.attach(t, Member{Link: "s-two", Number: 4093})
	serve(t, two, "0.0.0.0:80")
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	wantAnswer(t, two, internetIPv4+":80", hostIPv4)
	if forwardsIPv6() {
		wantAnswer(t, one, "["+internetIPv6+"]:81", hostIPv6)
	}
	for _, address := range []string{
		hostIPv4 + ":80", "8.8.4.4:80", "[" + hostIPv6 + "]:81", "10.0.0.9:80", "169.254.169.254:80", "169.254.1.1:80",
		ipv4Of(t, two) + ":80",
	} {
		wantRefusal(t, one, address)
	}
}

// The kernel refuses addresses and neighbours of IPv6 on a device with disable_ipv6, and on one with an MTU below 1280.
// The link takes the MTU from the host's default route.
func TestAHostWithoutIPv6HasSandboxesWithIPv4(t *testing.T) {
	for _, line := range []string{"echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6", "ip link set wan mtu 1200"} {
		w := newWorld(t)
		serve(t, w.internet, "0.0.0.0:80")
		netnstest.Shell(t, w.host, line)
		one := w.attach(t, Member{Link: "s-one", Number: 1})
		wantAnswer(t, one, internetIPv4+":80", hostIPv4)
		if got := netnstest.Shell(t, one, "ip -6 address show dev eth0 scope global"); got != "" {
			t.Errorf("%s: %s", line, got)
		}
	}
}

func TestNothingStays(t *testing.T) {
	w := newWorld(t)
	before := hostState(t, w)
	a, b := Member{Link: "s-a", Number: 1}, Member{Link: "s-b", Number: 2}
	w.attach(t, a)
	w.attach(t, b)
	if during := hostState(t, w); !strings.Contains(during, "ipv4/conf/wan/forwarding:1") || !strings.Contains(during, "ipv4/conf/all/forwarding:0") {
		t.Errorf("forwarding:\n%s", during)
	}
	w.detach(t, nil, a.Link)
	w.detach(t, nil, b.Link)
	if after := hostState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// The kernel removes the link of a removed sandbox later than the next sandbox can get its address.
func TestTheAddressOfARemovedSandboxCanBeUsedAtOnce(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	serve(t, w.internet, "[::]:81")
	w.attach(t, Member{Link: "s-stays", Number: 2})
	w.attach(t, Member{Link: "s-old", Number: 1})
	w.detach(t, nil, "s-old")
	next := w.attach(t, Member{Link: "s-next", Number: 1})
	wantAnswer(t, next, internetIPv4+":80", hostIPv4)
	wantAnswer(t, next, "["+internetIPv6+"]:81", hostIPv6)
}

// A connection that waits for an answer gets an error at once when the sandbox is cut off. Those
// within the sandbox go on.
func TestACutEndsConnections(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	silent := netnstest.Listen(t, w.internet, "0.0.0.0:80")
	m := Member{Link: "s-cut", Number: 7}
	sandbox := w.attach(t, m)
	local := netnstest.Listen(t, sandbox, "127.0.0.1:80")
	outside, within := dial(t, sandbox, "tcp", internetIPv4+":80"), dial(t, sandbox, "tcp", "127.0.0.1:80")
	packets := dial(t, sandbox, "udp", internetIPv4+":80")
	far, near := accept(t, silent), accept(t, local)
	defer far.Close()
	// A closed connection, which the kernel keeps for a minute, is no connection to end.
	closed := dial(t, sandbox, "tcp", internetIPv4+":80")
	closedFar := accept(t, silent)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	_, _ = closedFar.Read(make([]byte, 1)) // the end of the stream
	closedFar.Close()
	testhost.Eventually(t, "TIME-WAIT", func() bool {
		return strings.Contains(netnstest.Shell(t, sandbox, "ss -tn state time-wait"), internetIPv4+":80")
	})

	ends := make(chan error, 2)
	for _, c := range []net.Conn{outside, packets} {
		go func() {
			_, err := c.Read(make([]byte, 1))
			ends <- err
		}()
	}
	time.Sleep(50 * time.Millisecond) // both readers wait
	if got := w.detach(t, sandbox, m.Link); got != 2 {
		t.Errorf("%d connections ended", got)
	}
	for range 2 {
		select {
		case err := <-ends:
			if !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("a reader got %v", err)
			}
		case <-time.After(patience):
			t.Fatal("a reader still waits")
		}
	}
	if _, err := near.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := within.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("within the sandbox: %v", err)
	}
	wantRefusal(t, sandbox, internetIPv4+":80")
}

// The only sandbox loses its network together with the router, and gets it back at once: the kernel
// still has its link to the earlier router.
func TestTheOnlySandboxGetsItsNetworkBack(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	m := Member{Link: "s-one", Number: 1}
	one := w.attach(t, m)
	for round := range 20 {
		earlier, err := w.router.namespace()
		if err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 { // else the link stays
			earlier.Close()
		}
		w.detach(t, one, m.Link)
		wantRefusal(t, one, internetIPv4+":80")
		w.connect(t, one, m)
		wantAnswer(t, one, internetIPv4+":80", hostIPv4)
		earlier.Close()
	}
}

func TestRulesWidenAndNarrow(t *testing.T) {
	w := newWorld(t)
	netnstest.Shell(t, w.internet, "ip address add 10.0.0.9/32 dev lo; ip address add 9.9.9.10/24 dev lan")
	for _, address := range []string{"10.0.0.9:80", "10.0.0.9:81", internetIPv4 + ":80", internetIPv4 + ":81", "9.9.9.10:80"} {
		serve(t, w.internet, address)
	}
	one := w.attach(t, Member{
		Link: "s-one", Number: 1,
		Allow: rules(t, "10.0.0.0/24:80", "9.9.9.0/24", "10.128.0.0/9"), Deny: rules(t, "9.9.9.8/31:70-80", "9.9.9.10"),
	})
	other := w.attach(t, Member{Link: "s-other", Number: 2})
	wantAnswer(t, one, "10.0.0.9:80", hostIPv4)
	wantAnswer(t, one, internetIPv4+":81", hostIPv4)
	for _, address := range []string{"10.0.0.9:81", internetIPv4 + ":80", "9.9.9.10:80"} {
		wantRefusal(t, one, address)
	}
	serve(t, other, "0.0.0.0:80")
	wantRefusal(t, one, ipv4Of(t, other)+":80")
	wantRefusal(t, other, "10.0.0.9:80")
	wantAnswer(t, other, internetIPv4+":80", hostIPv4)
}

// Rules can overlap in each way. Together they hold for all that each one names.
func TestRulesOverlap(t *testing.T) {
	w := newWorld(t)
	netnstest.Shell(t, w.internet, "ip address add 10.0.0.9/32 dev lo")
	ports := []string{"60", "79", "80", "81", "85", "100"}
	for _, port := range append(ports, "101") {
		serve(t, w.internet, "10.0.0.9:"+port)
	}
	some := []string{"10.0.0.0/8:80", "10.0.0.8/31:79-81", "10.0.0.8/31:81-90", "10.0.0.9:60-100", "10.0.0.9:85", "10.0.0.9:80", "10.0.0.9:80"}
	for i, all := range [][]string{some, append(slices.Clone(some), "10.0.0.8", "10.0.0.8/31:80"), append(slices.Clone(some), "10.0.0.0/16", "10.0.0.0/8")} {
		m := Member{Link: fmt.Sprintf("s-%d", i), Number: uint32(i), Allow: rules(t, all...)}
		one := w.attach(t, m)
		for _, port := range ports {
			wantAnswer(t, one, "10.0.0.9:"+port, hostIPv4)
		}
		if _, err := exchange(one, "tcp", "10.0.0.9:101"); (err == nil) != (i == 2) {
			t.Errorf("%q: %v", all, err)
		}
		m.Deny = m.Allow
		w.regrant(t, one, m)
		for _, port := range ports {
			if _, err := exchange(one, "tcp", "10.0.0.9:"+port); err == nil {
				t.Errorf("%q: port %s is not denied", all, port)
			}
		}
	}
}

// Of the open connections those end that the new rules do not permit. The others go on.
func TestNewRulesEndConnections(t *testing.T) {
	w := newWorld(t)
	netnstest.Shell(t, w.internet, "ip address add 10.0.0.9/32 dev lo")
	m := Member{Link: "s-one", Number: 1, Allow: rules(t, "10.0.0.0/24")}
	one := w.attach(t, m)
	type open struct{ near, far net.Conn }
	connections := map[string]open{}
	for _, address := range []string{"10.0.0.9:80", "10.0.0.9:81", internetIPv4 + ":80", internetIPv4 + ":81"} {
		l := netnstest.Listen(t, w.internet, address)
		near := dial(t, one, "tcp", address)
		connections[address] = open{near, accept(t, l)}
	}
	m.Allow, m.Deny = rules(t, "10.0.0.9:81"), rules(t, internetIPv4+":81")
	var ended int
	err := w.doOnHost(func() (err error) {
		ended, err = w.router.Regrant(t.Context(), one, m)
		return err
	})
	if err != nil || ended != 2 {
		t.Errorf("%d connections ended: %v", ended, err)
	}
	for address, c := range connections {
		_, _ = c.far.Write([]byte("x"))
		_ = c.near.SetReadDeadline(time.Now().Add(patience))
		_, err := c.near.Read(make([]byte, 1))
		if stays := address == "10.0.0.9:81" || address == internetIPv4+":80"; stays && err != nil || !stays && !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("%s: %v", address, err)
		}
	}
	serve(t, w.internet, "10.0.0.9:82")
	wantRefusal(t, one, "10.0.0.9:82")
}

// A rule for one address of the host opens this address, on the ports of the rule. A range opens no
// address of the host. The next sandbox repairs a flushed firewall, also for the others.
func TestARuleOpensAnAddressOfTheHost(t *testing.T) {
	w := newWorld(t)
	netnstest.Shell(t, w.host, "ip address add 10.0.0.1/24 dev wan")
	for _, address := range []string{hostIPv4 + ":80", hostIPv4 + ":81", "10.0.0.1:80", "[" + hostIPv6 + "]:80"} {
		serve(t, w.host, address)
	}
	m := Member{Link: "s-one", Number: 1, Allow: rules(t, hostIPv4+":80", "10.0.0.0/24", "9.9.9.0/24")}
	if forwardsIPv6() {
		m.Allow = append(m.Allow, rules(t, hostIPv6)...)
	}
	one, other := w.attach(t, m), w.attach(t, Member{Link: "s-two", Number: 2})
	wantOpen := func() {
		t.Helper()
		wantAnswer(t, one, hostIPv4+":80", ipv4Of(t, one))
		if forwardsIPv6() {
			if got, err := exchange(one, "tcp", "["+hostIPv6+"]:80"); err != nil {
				t.Errorf("IPv6: %q, %v", got, err)
			}
		}
		for _, address := range []string{hostIPv4 + ":81", "10.0.0.1:80"} {
			wantRefusal(t, one, address)
		}
		wantRefusal(t, other, hostIPv4+":80")
	}
	wantOpen()
	netnstest.Shell(t, w.host, "nft flush ruleset")
	w.attach(t, Member{Link: "s-three", Number: 3})
	wantOpen()

	waits := dial(t, one, "udp", hostIPv4+":80")
	m.Deny = rules(t, hostIPv4+":80")
	var ended int
	err := w.doOnHost(func() (err error) {
		ended, err = w.router.Regrant(t.Context(), one, m)
		return err
	})
	if err != nil || ended == 0 { // those of wantOpen can still be closing
		t.Errorf("%d connections ended: %v", ended, err)
	}
	if _, err := waits.Write([]byte("?")); err == nil {
		t.Error("a denied connection goes on")
	}
	wantRefusal(t, one, hostIPv4+":80")
	w.detach(t, nil, m.Link)
	if table := netnstest.Shell(t, w.host, "nft list ruleset"); strings.Contains(table, hostIPv4) {
		t.Errorf("a rule of a sandbox that is gone stays:\n%s", table)
	}
}

// Without the host's table the router's packets go nowhere. The next sandbox brings it back.
func TestAFlushedFirewallLetsNothingPass(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	serve(t, w.internet, "[::]:81")
	serve(t, w.host, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1, Allow: rules(t, "9.9.9.0/24")})
	netnstest.Shell(t, w.host, "nft flush ruleset")
	for _, address := range []string{internetIPv4 + ":80", "[" + internetIPv6 + "]:81", hostIPv4 + ":80"} {
		wantRefusal(t, one, address)
	}
	w.attach(t, Member{Link: "s-two", Number: 2})
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	if forwardsIPv6() {
		wantAnswer(t, one, "["+internetIPv6+"]:81", hostIPv6)
	}
}

// The error names a way out that works.
func TestALostDeviceIsMadeAgainForTheNextSandbox(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	w.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "ip link del "+w.router.hostLink())
	err := w.doOnHost(func() error {
		_, err := w.router.Attach(t.Context(), netnstest.New(t), Member{Link: "s-two", Number: 2})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), w.router.hostLink()) || !strings.Contains(err.Error(), "the network none") {
		t.Errorf("without the device: %v", err)
	}
	w.detach(t, nil, "s-one")
	three := w.attach(t, Member{Link: "s-three", Number: 3})
	wantAnswer(t, three, internetIPv4+":80", hostIPv4)
}

// A sandbox is disconnected also while the host's table is missing.
func TestASandboxLeavesAFlushedHost(t *testing.T) {
	w := newWorld(t)
	before := hostState(t, w)
	m := Member{Link: "s-one", Number: 1, Allow: rules(t, hostIPv4+":80")}
	w.attach(t, m)
	netnstest.Shell(t, w.host, "nft flush ruleset")
	w.detach(t, nil, m.Link)
	if after := hostState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// The owner of the host can choose the range. A running router keeps its range.
func TestTheRangeIsTheOwners(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	netnstest.Shell(t, w.host, "ip route add 10.99.64.0/20 dev wan; ip route add 10.98.0.0/18 dev wan")
	try := func(text string) error {
		r := w.router
		var err error
		if r.Range, err = ParseRange(text); err != nil {
			return err
		}
		return w.doOnHost(func() error {
			link := fmt.Sprint("s-", time.Now().UnixMicro()%1e9) // no two have the same
			_, err := r.Attach(t.Context(), netnstest.New(t), Member{Link: link, Number: 5})
			_, undo := r.Detach(t.Context(), nil, link)
			return errors.Join(err, undo)
		})
	}
	for text, says := range map[string]string{
		"10.98.0.0/18": "the host has a route to 10.98.0.0/18", "10.99.64.0/18": "the host has a route to 10.99.64.0/20",
		"10.99.0.0/19": "no room", "fd00::/18": "no room", "127.0.0.0/8": "another meaning", "10.99.0.1/18": "the range is 10.99.0.0/18", "many": "no address range",
	} {
		if err := try(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	w.router.Range = netip.MustParsePrefix("10.99.0.0/17") // half of it is free
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	if got := ipv4Of(t, one); got != "10.99.0.17" {
		t.Errorf("the sandbox has the address %s", got)
	}
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	if err := try("10.97.0.0/18"); err == nil || !strings.Contains(err.Error(), "addresses of 10.99.0.0/18") {
		t.Errorf("another range: %v", err)
	}
	for _, same := range []string{"", "10.99.0.0/18", "10.0.0.0/8"} {
		if err := try(same); err != nil {
			t.Errorf("%q: %v", same, err)
		}
	}
}

// Another program switches forwarding on for all devices while there is a router, and needs it when the router has gone. An
// exception that was there before the router comes back.
func TestForwardingAfterTheLastRouter(t *testing.T) {
	const all, wan = "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/wan/forwarding"
	for name, c := range map[string]struct{ before, during, want string }{
		"off":                 {"true", "true", "0"},
		"on since":            {"true", "echo 1 > " + all, "1"},
		"on, with exceptions": {"echo 1 > " + all + "; echo 0 > " + wan, "true", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			netnstest.Shell(t, w.host, c.before)
			m := Member{Link: "s-one", Number: 1}
			w.attach(t, m)
			if got := netnstest.Shell(t, w.host, "cat "+wan); got != "1" {
				t.Errorf("with a router forwarding is %s", got)
			}
			netnstest.Shell(t, w.host, c.during)
			w.detach(t, nil, m.Link)
			if got := netnstest.Shell(t, w.host, "cat "+wan); got != c.want {
				t.Errorf("forwarding is %s, want %s", got, c.want)
			}
		})
	}
}

// Two state roots of one host have ranges of their own. The last router that goes switches
// forwarding off.
func TestTwoRoutersShareTheHost(t *testing.T) {
	w := newWorld(t)
	other := &world{host: w.host, internet: w.internet, router: Router{Dir: t.TempDir(), Resolv: resolvFile(t)}}
	serve(t, w.internet, "0.0.0.0:80")
	m := Member{Link: "s-one", Number: 1}
	one, two := w.attach(t, m), other.attach(t, m)
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	wantAnswer(t, two, internetIPv4+":80", hostIPv4)
	w.detach(t, nil, m.Link)
	wantAnswer(t, two, internetIPv4+":80", hostIPv4)
	other.detach(t, nil, m.Link)
	if got := netnstest.Shell(t, w.host, "cat /proc/sys/net/ipv4/conf/wan/forwarding"); got != "0" {
		t.Errorf("forwarding is %s", got)
	}
}

// Routers that end at once see each other. The last one switches forwarding off all the same.
func TestTwoRoutersEndAtOnce(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	other := &world{host: w.host, internet: w.internet, router: Router{Dir: t.TempDir(), Resolv: resolvFile(t)}}
	m := Member{Link: "s-one", Number: 1}
	for range 10 {
		w.attach(t, m)
		other.attach(t, m)
		var ends sync.WaitGroup
		for _, w := range []*world{w, other} {
			ends.Go(func() { w.detach(t, nil, m.Link) })
		}
		ends.Wait()
		if got := netnstest.Shell(t, w.host, "cat /proc/sys/net/ipv4/conf/wan/forwarding"); got != "0" {
			t.Fatalf("forwarding is %s", got)
		}
	}
}

// A sandbox's programs can bind addresses that are not theirs (IP_FREEBIND). Nothing with such a
// source gets out.
func TestForeignSourcesDoNotPass(t *testing.T) {
	w := newWorld(t)
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	w.attach(t, Member{Link: "s-two", Number: 2})
	heard := make(chan string, 10)
	forwardPackets(t, w.internet, "0.0.0.0:80", heard)
	forwardPackets(t, w.internet, "[::]:81", heard)
	netnstest.Shell(t, one, "ip address add 10.1.2.3/32 dev lo; ip address add 2600:9::77/128 dev lo nodad; ip address add "+hostIPv4+"/32 dev lo")
	sources := []string{"10.1.2.3", hostIPv4}
	if forwardsIPv6() {
		sources = append(sources, "2600:9::77")
	}
	for _, source := range sources {
		destination := internetIPv4 + ":80"
		if strings.Contains(source, "::") {
			destination = "[" + internetIPv6 + "]:81"
		}
		err := netns.Do(one, func() error {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}
			c, err := d.Dial("udp", destination)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(source))
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", source, err)
		}
	}
	err := netns.Do(one, func() error {
		c, err := net.Dial("udp", internetIPv4+":80")
		if err == nil {
			defer c.Close()
			_, err = c.Write([]byte("own"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-heard:
		if got != "own" {
			t.Errorf("%s got out", got)
		}
	case <-time.After(patience):
		t.Error("the packet with the sandbox's own source got lost")
	}
}

// Other programs can set the router's bit on packets of their own.
func TestPacketsOfOthersKeepTheirSource(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, internetIPv4+":80")
	w.attach(t, Member{Link: "s-one", Number: 1})
	const other = "9.9.9.77"
	netnstest.Shell(t, w.host, "ip address add "+other+"/32 dev lo")
	marking := func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
		return errors.Join(err, failed)
	}
	d := net.Dialer{Timeout: patience, LocalAddr: &net.UDPAddr{IP: net.ParseIP(other)}, Control: marking}
	if got, err := exchangeBy(w.host, d, "udp", internetIPv4+":80"); err != nil || got != other {
		t.Errorf("the internet saw %q, %v, not %s", got, err, other)
	}
}

// A process that is killed at any moment leaves nothing that Prune does not remove.
func TestKilledProcessesLeaveNothing(t *testing.T) {
	w := newWorld(t)
	before := hostState(t, w)
	for i := range 40 {
		cmd := exec.Command("nsenter", "--net=/proc/self/fd/3", os.Args[0])
		cmd.Env = append(os.Environ(), victimVariable+"="+w.router.Dir)
		cmd.ExtraFiles = []*os.File{w.host}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond)
		_ = cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("round %d: the victim ended by itself: %v", i, err)
		}
		if err := w.doOnHost(func() error { return w.router.Prune(t.Context(), noLinkLives) }); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	if after := hostState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	w.wantNoFiles(t)
	testhost.Eventually(t, "the published port is free", func() bool {
		err := w.doOnHost(func() error {
			l, err := net.Listen("tcp", victimPorts[0].Host.String())
			if err == nil {
				l.Close()
			}
			return err
		})
		return err == nil
	})
}

// A process is killed between the write of a file and its rename.
func TestPruneRemovesDrafts(t *testing.T) {
	w := newWorld(t)
	w.attach(t, Member{Link: "s-gone", Number: 1})
	for _, file := range []string{w.router.resolverFile(), w.router.publisherFile("s-gone"), w.router.ledger().path("s-gone")} {
		if err := os.WriteFile(file+".new", []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.doOnHost(func() error { return w.router.Prune(t.Context(), noLinkLives) }); err != nil {
		t.Fatal(err)
	}
	w.wantNoFiles(t)
}

func noLinkLives(string) (bool, error) { return false, nil }

// wantNoFiles compares the router's directory with that of a router that never was.
func (w *world) wantNoFiles(t *testing.T) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(w.router.Dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Names are those of the host's name servers, over UDP and TCP. The resolver comes back when it
// was killed.
func TestNamesAreTheHosts(t *testing.T) {
	w := newWorld(t)
	nameServer(t, w.internet)
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	for _, network := range []string{"udp", "tcp"} {
		if got, err := lookup(one, network, "some.example"); err != nil || !slices.Equal(got, []string{"9.8.7.6"}) {
			t.Errorf("%s: %v, %v", network, got, err)
		}
	}
	var notFound *net.DNSError
	if _, err := lookup(one, "udp", "none.example"); !errors.As(err, &notFound) || !notFound.IsNotFound {
		t.Errorf("a name that is not there: %v", err)
	}
	old, err := readJSON[process.ID](w.router.resolverFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := old.End(patience); err != nil {
		t.Fatal(err)
	}
	w.attach(t, Member{Link: "s-two", Number: 2})
	if got, err := lookup(one, "udp", "some.example"); err != nil {
		t.Errorf("after the resolver was killed: %v, %v", got, err)
	}
	wantRefusal(t, one, spec.NameServer+":54")
}

// The resolver has no privilege. It ends with the last sandbox.
func TestTheResolverIsNobody(t *testing.T) {
	w := newWorld(t)
	m := Member{Link: "s-one", Number: 1}
	w.attach(t, m)
	id, err := readJSON[process.ID](w.router.resolverFile())
	if err != nil {
		t.Fatal(err)
	}
	wantNobody(t, id)
	w.detach(t, nil, m.Link)
	if id.Lives() {
		t.Error("the resolver outlives the last sandbox")
	}
}

// Other sandboxes come and go while the router's devices are listed.
func TestDevicesAreListedWhileOthersChange(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	w.attach(t, Member{Link: "s-one", Number: 1})
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	netnstest.Shell(t, namespace, "for i in $(seq 100); do echo link add x$i type veth peer name y$i; done | ip -batch -")
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				netnstest.Shell(t, namespace, "for i in $(seq 50); do echo link del x$i; echo link add x$i type veth peer name y$i; done | ip -batch -")
			}
		}
	})
	for range 300 {
		if names, err := linkNames(namespace); err != nil || !slices.Contains(names, "s-one") {
			t.Errorf("%v, %v", names, err)
			break
		}
	}
	close(stop)
	changing.Wait()
	netnstest.Shell(t, namespace, "for i in $(seq 100); do echo link del x$i; done | ip -batch -")
}

// The host forgets also the connections of sandboxes that end together with the router, before they
// are disconnected.
func TestTheHostForgetsAllConnections(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	a, b := Member{Link: "s-a", Number: 1}, Member{Link: "s-b", Number: 2}
	one, two := w.attach(t, a), w.attach(t, b)
	for _, sandbox := range []*os.File{one, two} {
		wantAnswer(t, sandbox, internetIPv4+":80", hostIPv4)
	}
	netnstest.Shell(t, two, "ip link del eth0")
	w.detach(t, nil, a.Link)
	w.detach(t, nil, b.Link)
	err := w.doOnHost(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, f := range flows {
			if f.Forward.SrcIP.IsPrivate() {
				t.Errorf("the host has %v", f)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
