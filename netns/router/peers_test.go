package router

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// A rule for one address of another sandbox opens this address, on the ports of the rule, in one
// direction. A range opens no sandbox.
func TestARuleOpensAnotherSandbox(t *testing.T) {
	w := newWorld(t)
	two := w.attach(t, Member{Link: "s-two", Number: 2})
	four := ipv4Of(t, two)
	before := w.rules(t)
	nobody := netip.MustParseAddr(four).Next().Next().String()
	m := Member{Link: "s-one", Number: 1, Allow: rules(t, four+":80-81", nobody), Deny: rules(t, four+":81")}
	if forwardsIPv6() {
		m.Allow = append(m.Allow, rules(t, ipv6Of(t, two))...)
	}
	one := w.attach(t, m)
	wide := w.attach(t, Member{Link: "s-wide", Number: 3, Allow: rules(t, "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", four+"/31")})
	if after := w.rules(t); after != before {
		t.Errorf("%d rules became %d", before, after)
	}
	for _, port := range []string{":80", ":81", ":82"} {
		serve(t, two, "0.0.0.0"+port)
		serve(t, one, "0.0.0.0"+port)
	}
	wantAnswer(t, one, four+":80", ipv4Of(t, one))
	wantRefusal(t, one, four+":81")
	wantRefusal(t, one, four+":82")
	wantRefusal(t, two, ipv4Of(t, one)+":80")
	wantRefusal(t, wide, four+":80")
	wantRefusal(t, one, nobody+":80")
	if forwardsIPv6() {
		serve(t, two, "[::]:90")
		wantAnswer(t, one, "["+ipv6Of(t, two)+"]:90", ipv6Of(t, one))
	}
	m.Deny = nil
	w.regrant(t, one, m)
	wantAnswer(t, one, four+":81", ipv4Of(t, one))
}

// A rule that is not among the named ones opens no address of the host and of another sandbox.
func TestOnlyNamedRulesOpenSingleAddresses(t *testing.T) {
	w := newWorld(t)
	netnstest.Shell(t, w.internet, "ip address add 10.0.0.9/32 dev lo")
	two := w.attach(t, Member{Link: "s-two", Number: 2})
	address := ipv4Of(t, two)
	for _, port := range []string{":80", ":81"} {
		serve(t, two, "0.0.0.0"+port)
		serve(t, w.host, hostIPv4+port)
	}
	serve(t, w.internet, "10.0.0.9:80")
	one := w.attach(t, Member{
		Link: "s-one", Number: 1, Allow: rules(t, address+":80", address+":81", hostIPv4+":80", hostIPv4+":81", "10.0.0.9:80"),
		Named: rules(t, address+":81", hostIPv4+":81"),
	})
	wantRefusal(t, one, address+":80")
	wantRefusal(t, one, hostIPv4+":80")
	wantAnswer(t, one, address+":81", ipv4Of(t, one))
	wantAnswer(t, one, hostIPv4+":81", ipv4Of(t, one))
	wantAnswer(t, one, "10.0.0.9:80", hostIPv4)
}

// Another sandbox that gets the address of an earlier one is not reached by its rules, and not over its
// connections.
func TestARuleForASandboxGoesWithTheSandbox(t *testing.T) {
	w := newWorld(t)
	old := Member{Link: "s-old", Number: 2}
	for name, end := range map[string]func(){
		"detach": func() { w.detach(t, nil, old.Link) },
		"prune": func() {
			err := w.doOnHost(func() error {
				return w.router.Prune(t.Context(), func(link string) (bool, error) { return link != old.Link, nil })
			})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		address := ipv4Of(t, w.attach(t, old))
		listening := netnstest.Listen(t, w.sandboxes[old.Number], "0.0.0.0:80")
		m := Member{Link: "s-one-" + name, Number: 1, Allow: rules(t, address)}
		one := w.attach(t, m)
		stream, packets := dial(t, one, "tcp", address+":80"), dial(t, one, "udp", address+":81")
		accept(t, listening)
		end()
		next := w.attach(t, Member{Link: "s-next-" + name, Number: old.Number})
		if got := ipv4Of(t, next); got != address {
			t.Fatalf("the address is %s, not %s", got, address)
		}
		heard := watchDevice(t, next, inside)
		serve(t, next, "0.0.0.0:80")
		serve(t, next, "0.0.0.0:81")
		_, _ = stream.Write([]byte(marker(name)))
		_, _ = packets.Write([]byte(marker(name)))
		wantRefusal(t, one, address+":80")
		m.Allow = append(m.Allow, rules(t, "192.0.2.1")...)
		m.Late = true
		w.regrant(t, one, m)
		wantRefusal(t, one, address+":80")
		if heard.sawText(marker(name)) {
			t.Errorf("%s: the next sandbox got a packet for the earlier one", name)
		}
		w.detach(t, nil, m.Link)
		w.detach(t, nil, "s-next-"+name)
	}
}

// Connections between sandboxes end on both sides as soon as one side loses its rule or its network.
func TestConnectionsBetweenSandboxesEnd(t *testing.T) {
	testhost.Concurrent(t)
	w := newWorld(t)
	a, b := Member{Link: "s-a", Number: 1}, Member{Link: "s-b", Number: 2}
	one, two := w.attach(t, a), w.attach(t, b)
	address := ipv4Of(t, two)
	a.Allow = rules(t, address)
	w.attach(t, Member{Link: "s-stays", Number: 3}) // and so does the router
	l := netnstest.Listen(t, two, "0.0.0.0:80")
	for name, end := range map[string]func(){
		"a rule is gone": func() { w.regrant(t, one, Member{Link: a.Link, Number: a.Number}) },
		"a rule denies": func() {
			w.regrant(t, one, Member{Link: a.Link, Number: a.Number, Allow: a.Allow, Deny: rules(t, address+":80")})
		},
		"the caller is cut":    func() { w.detach(t, one, a.Link); w.connect(t, one, a) },
		"the other one is cut": func() { w.detach(t, two, b.Link); w.connect(t, two, b) },
	} {
		w.regrant(t, one, a)
		near := dial(t, one, "tcp", address+":80")
		ends := make(chan error, 2)
		for _, c := range []net.Conn{near, accept(t, l)} {
			go func() {
				_, err := c.Read(make([]byte, 1))
				ends <- err
			}()
		}
		time.Sleep(50 * time.Millisecond) // both readers wait
		end()
		for range 2 {
			select {
			case err := <-ends:
				if !errors.Is(err, unix.ECONNABORTED) {
					t.Errorf("%s: a reader got %v", name, err)
				}
			case <-time.After(patience):
				t.Fatalf("%s: a reader still waits", name)
			}
		}
		if left := w.tracked(t, address); len(left) > 0 {
			t.Errorf("%s: the router tracks %v", name, left)
		}
	}
}

// tracked are the connections in the router to an address and its port 80.
func (w *world) tracked(t *testing.T, address string) (found []string) {
	t.Helper()
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	err = inNamespace(namespace, func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, f := range flows {
			if f.Forward.DstIP.String() == address && f.Forward.DstPort == 80 {
				found = append(found, fmt.Sprint(f))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The quota of a sandbox counts the packets of another one, but only those that a rule allows.
func TestAQuotaCountsThePacketsOfOtherSandboxes(t *testing.T) {
	w := newWorld(t)
	b := Member{Link: "s-b", Number: 2, Quota: 100_000}
	two := w.attach(t, b)
	address := ipv4Of(t, two)
	counts := exchangeBulk(t, two, "0.0.0.0:80", 0)
	one := w.attach(t, Member{Link: "s-a", Number: 1, Allow: rules(t, address+":80")})
	refused := dial(t, one, "udp", address+":81")
	for range 10 {
		_, _ = refused.Write(make([]byte, 1000))
	}
	if got := w.traffic(t, b.Link).Charged; got > 5000 { // the sandbox sends packets of IPv6
		t.Errorf("refused packets: %d bytes are charged", got)
	}
	c := dial(t, one, "tcp", address+":80")
	_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	_, _ = io.Copy(c, io.LimitReader(zeros{}, mebibyte))
	if n := <-counts; n == 0 || n > int64(b.Quota) {
		t.Errorf("%d bytes arrived", n)
	}
	wantRefusal(t, one, address+":80")
}
