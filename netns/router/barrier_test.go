package router

import (
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// barriers are forward policies of other programs, with the first command that lets packets of
// sandboxes pass. "DEV" is the router's device.
var barriers = map[string]struct{ ruleset, fix string }{
	"a policy":       {`add table inet own; add chain inet own fw { type filter hook forward priority 0; policy drop; }`, `nft insert rule inet own fw iifname sr-* accept`},
	"a last rule":    {`add table ip own; add chain ip own fw { type filter hook forward priority 0; }; add rule ip own fw ct state established accept; add rule ip own fw counter reject`, `nft insert rule ip own fw iifname sr-* accept`},
	"another's rule": {`add table ip own; add chain ip own fw { type filter hook forward priority 0; policy drop; }; add rule ip own fw iifname "sr-other" accept`, `nft insert rule ip own fw iifname sr-* accept`},
	"iptables":       {`add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }`, `iptables -I FORWARD -i sr-+ -j ACCEPT`},
	"docker": {`add table ip6 filter; add chain ip6 filter FORWARD { type filter hook forward priority 0; policy drop; }; add chain ip6 filter DOCKER-USER; add rule ip6 filter FORWARD jump DOCKER-USER`,
		`ip6tables -I DOCKER-USER -i sr-+ -j ACCEPT`},
	"ufw": {`add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }; add chain ip filter ufw-user-forward; add chain ip filter DOCKER-USER`,
		`ufw route allow in on DEV`},
	"firewalld": {`add table inet firewalld; add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; }; add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited`,
		`firewall-cmd --zone=trusted --add-interface=DEV`},
}

func TestBarriersAreNamed(t *testing.T) {
	w := newWorld(t)
	w.attach(t, Member{Link: "s-one", Number: 1})
	if got := w.barriers(t); len(got) != 0 {
		t.Errorf("without another firewall: %+v", got)
	}
	for name, b := range barriers {
		netnstest.Shell(t, w.host, "nft '"+b.ruleset+"'")
		want := strings.ReplaceAll(b.fix, "DEV", w.router.hostLink())
		if got := w.barriers(t); len(got) != 1 || strings.Join(got[0].Fix[0], " ") != want {
			t.Errorf("%s: %+v, want %s", name, got, want)
		}
		netnstest.Shell(t, w.host, "nft delete table "+strings.Join(strings.Fields(b.ruleset)[2:4], " "))
	}
	netnstest.Shell(t, w.host, `nft 'add table inet own; add chain inet own fw { type filter hook forward priority 0; policy drop; }
		add rule inet own fw ct state established,related accept; add rule inet own fw iifname "`+w.router.hostLink()+`" accept'`)
	if got := w.barriers(t); len(got) != 0 {
		t.Errorf("a firewall that lets the packets pass: %+v", got)
	}
}

// The named commands are those that help.
func TestTheFixOfABarrierHelps(t *testing.T) {
	w := newWorld(t)
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	netnstest.Shell(t, w.host, "nft '"+barriers["a policy"].ruleset+"'")
	if got, err := exchangeWithin(one, "tcp", internetIPv4+":80", 300*time.Millisecond); err == nil {
		t.Fatalf("the firewall lets packets pass: %s", got)
	}
	for _, command := range w.barriers(t)[0].Fix {
		netnstest.Shell(t, w.host, "set -f; "+strings.Join(command, " "))
	}
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
	if got := w.barriers(t); len(got) != 0 {
		t.Errorf("after the commands: %+v", got)
	}
}

func TestAFlushedFirewallIsRepaired(t *testing.T) {
	w := newWorld(t)
	isFlushed := func(want bool) {
		t.Helper()
		err := w.doOnHost(func() error {
			got, err := w.router.IsFlushed()
			if got != want {
				t.Errorf("flushed: %v, want %v", got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	isFlushed(false)
	serve(t, w.internet, "0.0.0.0:80")
	one := w.attach(t, Member{Link: "s-one", Number: 1})
	isFlushed(false)
	netnstest.Shell(t, w.host, "nft flush ruleset; ip rule del priority 30321")
	isFlushed(true)
	if err := w.doOnHost(func() error { return w.router.Repair(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	isFlushed(false)
	wantAnswer(t, one, internetIPv4+":80", hostIPv4)
}

func (w *world) barriers(t *testing.T) (found []Barrier) {
	t.Helper()
	err := w.doOnHost(func() (err error) {
		found, err = w.router.Barriers()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
