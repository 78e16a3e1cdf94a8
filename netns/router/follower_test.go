package router

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// addCard gives the host another device, with a network behind it that knows the way to the internet by the host.
func (w *world) addCard(t *testing.T, name, prefix string) *os.File {
	t.Helper()
	far := netnstest.New(t)
	netnstest.Shell(t, w.host, "ip link add "+name+" type veth peer name far && ip link set far netns /proc/self/fd/4 && ip link set "+name+" up && ip address add "+prefix+"1/24 dev "+name, far)
	netnstest.Shell(t, far, "ip link set lo up; ip link set far up; ip address add "+prefix+"9/24 dev far; ip route add default via "+prefix+"1")
	return far
}

// reaches waits until the sandbox reaches the address.
func reaches(t *testing.T, sandbox *os.File, address, want string) {
	t.Helper()
	testhost.Eventually(t, address+" answers", func() bool {
		got, err := exchangeWithin(sandbox, "tcp", address, time.Second)
		return err == nil && got == want
	})
}

// A running sandbox reaches networks that come later, and new addresses of the host stay closed.
func TestARunningSandboxFollowsTheHost(t *testing.T) {
	w := newWorld(t)
	before := hostState(t, w)
	serve(t, w.host, "0.0.0.0:81")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	for range 2 { // a device that comes again
		far := w.addCard(t, "late", "9.7.7.")
		serve(t, far, "0.0.0.0:80")
		reaches(t, one, "9.7.7.9:80", "9.7.7.1")
		testhost.Eventually(t, "the new address of the host is known", func() bool {
			return strings.Contains(netnstest.Shell(t, w.routerNamespace(t), "nft list set inet sandbox-runtime host4"), "9.7.7.1")
		})
		wantRefusal(t, one, "9.7.7.1:81")
		netnstest.Shell(t, w.host, "ip link del late")
	}
	w.detach(t, nil, "s-one")
	if after := hostState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func (w *world) routerNamespace(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(w.router.pinPath())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The host does not become a router between its networks, unless another program wants that.
func TestTheHostRoutesForSandboxesOnly(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	serve(t, w.internet, "[::]:81")
	near := w.addCard(t, "near", "9.7.7.")
	netnstest.Shell(t, w.host, "ip address add 2600:7::1/64 dev near nodad; ip address add fe80::7/64 dev wan nodad") // forwarding of IPv6 needs a link-local address
	netnstest.Shell(t, near, "ip address add 2600:7::9/64 dev far nodad; ip route add default via 2600:7::1")
	netnstest.Shell(t, w.internet, "ip route add 9.7.7.0/24 via "+hostIPv4+"; ip route add 2600:7::/64 via "+hostIPv6)
	w.attach(t, Member{Link: "s-one", Number: 1})
	closed := func(address string) {
		t.Helper()
		if got, err := exchangeWithin(near, "tcp", address, 3*time.Second); err == nil {
			t.Errorf("%s answers another network by the host: %s", address, got)
		}
	}
	closed(internetIPv4 + ":80")
	closed("[" + internetIPv6 + "]:81")
	if got := netnstest.Shell(t, w.host, "nft list ruleset"); !strings.Contains(got, `"near"`) {
		t.Errorf("nft does not show the guarded devices:\n%s", got)
	}
	netnstest.Shell(t, w.host, "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
	reaches(t, near, internetIPv4+":80", "9.7.7.9")
	reaches(t, near, "["+internetIPv6+"]:81", "2600:7::9")
}

// The router of a second state root guards the same devices as the first router. It does not guard devices that the host
// has switched on later.
func TestALaterRouterLeavesAHostThatRoutes(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	near := w.addCard(t, "near", "9.7.7.")
	netnstest.Shell(t, w.internet, "ip route add 9.7.7.0/24 via "+hostIPv4)
	other := &world{host: w.host, internet: w.internet, router: Router{Dir: t.TempDir(), Resolv: resolvFile(t)}}
	m := Member{Link: "s-one", Number: 1}
	w.attach(t, m)
	other.attach(t, m)
	if got, err := exchangeWithin(near, "tcp", internetIPv4+":80", 3*time.Second); err == nil {
		t.Errorf("the host became a router: %s", got)
	}
	other.detach(t, nil, m.Link)
	netnstest.Shell(t, w.host, "echo 1 >/proc/sys/net/ipv4/ip_forward")
	reaches(t, near, internetIPv4+":80", "9.7.7.9")
	other.attach(t, m)
	time.Sleep(2 * lookTime)
	wantAnswer(t, near, internetIPv4+":80", "9.7.7.9")
	other.detach(t, nil, m.Link)
	w.detach(t, nil, m.Link)
	wantAnswer(t, near, internetIPv4+":80", "9.7.7.9")
}

// A setting that an administrator has switched off although all others are on is an exception, which stays guarded.
func TestExceptionsStayGuarded(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	near := w.addCard(t, "near", "9.7.7.")
	netnstest.Shell(t, w.internet, "ip route add 9.7.7.0/24 via "+hostIPv4)
	netnstest.Shell(t, w.host, "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv4/conf/near/forwarding")
	serve(t, near, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	reaches(t, one, "9.7.7.9:80", "9.7.7.1")
	if got, err := exchangeWithin(near, "tcp", internetIPv4+":80", 3*time.Second); err == nil {
		t.Errorf("the exception forwards: %s", got)
	}
	w.detach(t, nil, "s-one")
	if got := netnstest.Shell(t, w.host, "cat /proc/sys/net/ipv4/conf/near/forwarding /proc/sys/net/ipv4/conf/wan/forwarding"); got != "0\n1" {
		t.Errorf("forwarding: %s", got)
	}
}

// A device that gets another name, or becomes a port of a bridge, keeps the guard and gets its settings back.
func TestChangedDevicesGetTheirSettingsBack(t *testing.T) {
	for name, change := range map[string]struct{ to, back string }{
		"renamed": {"ip link set wan down; ip link set wan name other; ip link set other up; ip route add default via " + internetIPv4,
			"ip link set other down; ip link set other name wan; ip link set wan up"},
		"names exchanged": {"ip link set wan down; ip link set near down; ip link set wan name x; ip link set near name wan; ip link set x name near; ip link set wan up; ip link set near up",
			"ip link set wan down; ip link set near down; ip link set wan name x; ip link set near name wan; ip link set x name near"},
		"a port":     {"ip link set near master bridge", "ip link set near nomaster"},
		"was a port": {"ip link set near master bridge; sleep 0.3; ip link set near nomaster", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addCard(t, "near", "9.7.7.")
			netnstest.Shell(t, w.host, "ip link add bridge type bridge")
			settings := func() string {
				return netnstest.Shell(t, w.host, "grep -s . /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/f*forwarding")
			}
			before := settings()
			w.attach(t, Member{Link: "s-one", Number: 1})
			netnstest.Shell(t, w.host, change.to)
			testhost.Eventually(t, "each device with forwarding is guarded", func() bool { return len(unguarded(t, w)) == 0 })
			w.detach(t, nil, "s-one")
			netnstest.Shell(t, w.host, change.back)
			if after := settings(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// unguarded are the devices of the host that forward IPv4 for all.
func unguarded(t *testing.T, w *world) (names []string) {
	t.Helper()
	err := w.doOnHost(func() error {
		f, err := openLasting(nil, w.router.hostSide().table())
		if err != nil {
			return err
		}
		defer f.close()
		set := guarded(ipv4)
		elements, err := f.conn.GetSetElements(f.existingSet(set))
		if err != nil {
			return err
		}
		host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer host.Close()
		devices, err := networkDevices(host)
		for _, d := range devices {
			isGuarded := slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return bytes.Equal(e.Key, interfaceName(d.name)) })
			if isOff, e := (setting{ipv4.name, d.name}).isOff(); e != nil || !isOff && !isGuarded {
				names = append(names, d.name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A device that becomes the port of a bridge keeps its guard and its note: it can leave the bridge again.
func TestAPortOfABridgeStaysNoted(t *testing.T) {
	w := newWorld(t)
	heard := make(chan string, 10)
	forwardPackets(t, w.internet, "0.0.0.0:82", heard)
	near := w.addCard(t, "near", "9.7.7.")
	netnstest.Shell(t, w.host, "ip link add bridge type bridge; ip link set bridge up")
	before := forwardingState(t, w)
	w.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "ip link set near master bridge")
	w.attach(t, Member{Link: "s-two", Number: 2}) // looks at the devices
	netnstest.Shell(t, w.host, "ip link set near nomaster")
	if _, err := exchangeWithin(near, "udp", internetIPv4+":82", time.Second); err == nil || len(heard) > 0 {
		t.Error("a device that was a port forwards")
	}
	netnstest.Shell(t, w.host, "ip link set near master bridge")
	w.attach(t, Member{Link: "s-three", Number: 3})
	for _, link := range []string{"s-one", "s-two", "s-three"} {
		w.detach(t, nil, link)
	}
	if after := forwardingState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// An uplink with another name keeps its guard and its note.
func TestARenamedUplinkStaysNoted(t *testing.T) {
	w := newWorld(t)
	heard := make(chan string, 10)
	near := w.addCard(t, "near", "9.7.7.")
	forwardPackets(t, near, "0.0.0.0:82", heard)
	netnstest.Shell(t, w.internet, "ip route add 9.7.7.0/24 via "+hostIPv4)
	before := forwardingState(t, w)
	w.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "ip link set wan down && ip link set wan name other && ip link set other up")
	w.attach(t, Member{Link: "s-two", Number: 2}) // looks at the devices
	if _, err := exchangeWithin(w.internet, "udp", "9.7.7.9:82", time.Second); err == nil || len(heard) > 0 {
		t.Error("a renamed uplink forwards")
	}
	w.detach(t, nil, "s-one")
	w.detach(t, nil, "s-two")
	netnstest.Shell(t, w.host, "ip link set other down && ip link set other name wan")
	if after := forwardingState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func forwardingState(t *testing.T, w *world) string {
	t.Helper()
	return netnstest.Shell(t, w.host, "grep -s . /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/f*forwarding")
}

// A host with more devices than the state has room for keeps the others as they are.
func TestDevicesBeyondTheRoomOfTheStateStayOff(t *testing.T) {
	w := newWorld(t)
	netnstest.Shell(t, w.host, "for i in $(seq 60); do ip link add d$i type veth peer name e$i; ip link set d$i up; ip link set e$i up; done")
	settings := func() string {
		return netnstest.Shell(t, w.host, "grep -s . /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/f*forwarding")
	}
	before := settings()
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	w.detach(t, nil, "s-one")
	if after := settings(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A killed follower opens nothing, and comes back with the next sandbox.
func TestAKilledFollowerComesBack(t *testing.T) {
	w := newWorld(t)
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	follower, err := readJSON[process.ID](w.router.followerFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := follower.End(patience); err != nil {
		t.Fatal(err)
	}
	far := w.addCard(t, "late", "9.7.7.")
	serve(t, far, "0.0.0.0:80")
	w.attach(t, Member{Link: "s-two", Number: 2})
	reaches(t, one, "9.7.7.9:80", "9.7.7.1")
	if next, err := readJSON[process.ID](w.router.followerFile()); err != nil || next == follower || !next.Lives() {
		t.Errorf("the follower: %v, %v", next, err)
	}
}

// The follower ends with the router, also if a killed process has removed it only in part.
func TestTheFollowerEndsWithTheRouter(t *testing.T) {
	w := newWorld(t)
	w.attach(t, Member{Link: "s-one", Number: 1})
	follower, err := readJSON[process.ID](w.router.followerFile())
	if err != nil {
		t.Fatal(err)
	}
	netnstest.Shell(t, w.host, "ip link del "+w.router.hostLink())
	testhost.Eventually(t, "the follower has ended", func() bool { return !follower.Lives() })
}

// Without the router's device or table nothing guards the host, so nothing is forwarded.
func TestForwardingEndsWithTheGuard(t *testing.T) {
	for name, loss := range map[string]string{"device": "ip link del ", "table": "nft flush ruleset # "} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.attach(t, Member{Link: "s-one", Number: 1})
			w.addCard(t, "late", "9.7.7.")
			settings := func() string {
				return netnstest.Shell(t, w.host, "for d in wan late; do cat /proc/sys/net/ipv4/conf/$d/forwarding; grep -s . /proc/sys/net/ipv6/conf/$d/force_forwarding; done; true")
			}
			testhost.Eventually(t, "the follower has looked", func() bool {
				return netnstest.Shell(t, w.host, "cat /proc/sys/net/ipv4/conf/late/forwarding") == "1"
			})
			netnstest.Shell(t, w.host, loss+w.router.hostLink())
			testhost.Eventually(t, "nothing is forwarded", func() bool { return !strings.Contains(settings(), "1") })
		})
	}
}

// Two routers do not leave unguarded settings to each other.
func TestForwardingOfTwoRoutersEndsWithTheGuards(t *testing.T) {
	w := newWorld(t)
	other := &world{host: w.host, internet: w.internet, router: Router{Dir: t.TempDir(), Resolv: resolvFile(t)}}
	w.attach(t, Member{Link: "s-one", Number: 1})
	other.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "nft flush ruleset")
	testhost.Eventually(t, "nothing is forwarded", func() bool {
		return netnstest.Shell(t, w.host, "cat /proc/sys/net/ipv4/conf/wan/forwarding") == "0"
	})
}

// A sandbox has its network again after the next command of the router.
func TestTheRouterComesBackAfterAFlush(t *testing.T) {
	w := newWorld(t)
	before := hostState(t, w)
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "nft flush ruleset")
	testhost.Eventually(t, "nothing is forwarded", func() bool {
		return netnstest.Shell(t, w.host, "cat /proc/sys/net/ipv4/conf/wan/forwarding") == "0"
	})
	two := w.attach(t, Member{Link: "s-two", Number: 2})
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	wantAnswer(t, two, internetIPv4+":80", hostIPv4)
	w.detach(t, nil, "s-one")
	w.detach(t, nil, "s-two")
	if after := hostState(t, w); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Two threads of the follower have CAP_NET_ADMIN, and none has another privilege.
func TestTheFollowerHasOneCapabilityInTwoThreads(t *testing.T) {
	w := newWorld(t)
	w.attach(t, Member{Link: "s-one", Number: 1})
	id, err := readJSON[process.ID](w.router.followerFile())
	if err != nil {
		t.Fatal(err)
	}
	fault := ""
	testhost.Eventually(t, "the follower has dropped its privileges", func() bool {
		fault = followerFault(t, id)
		return fault == ""
	})
	if fault != "" {
		t.Error(fault)
	}
}

func followerFault(t *testing.T, id process.ID) string {
	t.Helper()
	const none, netAdmin = "0000000000000000", "0000000000001000"
	capable := 0
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", id.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatal("no threads", err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		status := string(text)
		ids := strings.Repeat(fmt.Sprintf("\t%d", worker.ID), 4)
		for _, line := range []string{"Uid:" + ids, "Gid:" + ids, "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(status, line+"\n") {
				return fmt.Sprintf("no %q in %s", line, status)
			}
		}
		switch {
		case strings.Contains(status, "CapPrm:\t"+netAdmin+"\nCapEff:\t"+netAdmin+"\n"):
			capable++
		case !strings.Contains(status, "CapPrm:\t"+none+"\n"):
			return status
		}
	}
	if capable != 2 {
		return fmt.Sprintf("%d threads have CAP_NET_ADMIN", capable)
	}
	return ""
}

// The state is that of earlier versions, whose routers share the settings.
func TestTheStateOfAnEarlierVersionIsUnderstood(t *testing.T) {
	w := newWorld(t)
	old := state{Enabled: []string{"ipv4/wan", "except/ipv4"}}
	wan := device{index: 7, name: "wan", isUp: true, isUplink: true}
	if !old.has(wan, ipv4) || old.has(wan, ipv6) || !old.isException(wan, ipv4) {
		t.Errorf("%+v", old)
	}
	w.attach(t, Member{Link: "s-one", Number: 1})
	alias := netnstest.Shell(t, w.host, "ip -o link show "+w.router.hostLink())
	if !strings.Contains(alias, `"ipv4/wan"`) {
		t.Errorf("an earlier version does not see the uplink: %s", alias)
	}
}
