package router

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// killedDetach is a Detach that is killed after the removal of the elements.
func (w *world) killedDetach(t *testing.T, link, address string) {
	t.Helper()
	namespace, err := w.router.namespace()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	killed := errors.New("killed")
	err = w.doOnHost(func() error {
		f, err := openLasting(namespace, tableName)
		if err != nil {
			return err
		}
		defer f.close()
		if _, err := f.forget(f.existingSet(members(ipv4)), func(l string) bool { return l == link }); err != nil {
			return err
		}
		s := disconnection{Addresses: []netip.Addr{netip.MustParseAddr(address)}}
		return w.router.severance().begin(namespace, s, func() error { return errors.Join(f.flush(), killed) })
	})
	if !errors.Is(err, killed) {
		t.Fatal(err)
	}
}

// Connections of an earlier sandbox are not those of the next one with its address, also if the process
// that had to forget them was killed.
func TestAKilledDetachLeavesNoConnections(t *testing.T) {
	for name, next := range map[string]func(*world){
		"attach": func(w *world) { w.attach(t, Member{Link: "s-new", Number: 1}) },
		"detach": func(w *world) { w.detach(t, nil, "s-one") },
		"prune": func(w *world) {
			isLive := func(link string) (bool, error) { return link == "s-two", nil }
			if err := w.doOnHost(func() error { return w.router.Prune(t.Context(), isLive) }); err != nil {
				t.Error(err)
			}
		},
	} {
		w := newWorld(t)
		serve(t, w.internet, "0.0.0.0:80")
		one := w.attach(t, Member{Link: "s-one", Number: 1})
		w.attach(t, Member{Link: "s-two", Number: 2}) // keeps the router
		wantAnswer(t, one, internetIPv4+":80", hostIPv4)
		address := ipv4Of(t, one)
		w.killedDetach(t, "s-one", address)
		if tracked(t, w, address) == 0 || len(w.tracked(t, internetIPv4)) == 0 {
			t.Fatalf("%s: no connection is tracked", name)
		}
		next(w)
		if host, router := tracked(t, w, address), w.tracked(t, internetIPv4); host > 0 || len(router) > 0 {
			t.Errorf("%s: the host tracks %d connections, and the router %v", name, host, router)
		}
	}
}

// The last sandbox takes the router with it, and all its connections on the host.
func TestTheLastSandboxLeavesNoConnections(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	serve(t, w.internet, "[::]:81")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	addresses := []string{ipv4Of(t, one)}
	if forwardsIPv6() {
		wantAnswer(t, one, "["+internetIPv6+"]:81", hostIPv6)
		addresses = append(addresses, netnstest.Shell(t, one, "ip -6 -o address show eth0 scope global | sed 's/.*inet6 //;s/\\/.*//'"))
	}
	for _, a := range addresses {
		if tracked(t, w, a) == 0 {
			t.Fatalf("no connection of %s is tracked", a)
		}
	}
	w.detach(t, nil, "s-one")
	for _, a := range addresses {
		if n := tracked(t, w, a); n > 0 {
			t.Errorf("the host tracks %d connections of %s", n, a)
		}
	}
}

// The removal of a router removes the host's device before the namespace.
func TestARouterThatWasHalfRemovedIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	address := ipv4Of(t, one)
	w.killedDetach(t, "s-one", address)
	netnstest.Shell(t, w.host, "ip link del "+w.router.hostLink())
	two := w.attach(t, Member{Link: "s-two", Number: 2})
	if n := tracked(t, w, address); n > 0 {
		t.Errorf("the host tracks %d connections", n)
	}
	wantAnswer(t, two, internetIPv4+":80", hostIPv4)
	w.detach(t, nil, "s-two")
	w.wantNoFiles(t)
}
