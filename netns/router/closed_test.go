package router

import (
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Rules of a VPN lead nothing of a sandbox out after a flush of nftables, whether the VPN comes before the sandbox or later.
func TestRulesOfOthersOpenNoFlushedHost(t *testing.T) {
	const rules = "ip route add default via " + internetIPv4 + " table 7 && ip rule add not fwmark 51820 table 7 && ip rule add table main suppress_prefixlength 0"
	for name, isLate := range map[string]bool{"earlier": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if !isLate {
				netnstest.Shell(t, w.host, rules+" && ip rule add table 7 priority 5270")
			}
			before := hostState(t, w)
			heard := make(chan string, 10)
			forwardPackets(t, w.internet, "0.0.0.0:82", heard)
			one := w.attach(t, Member{Link: "s-one", Number: 1})
			if isLate {
				netnstest.Shell(t, w.host, rules)
			}
			testhost.Eventually(t, "the closed rule is the first one", func() bool {
				list := strings.Split(netnstest.Shell(t, w.host, "ip rule"), "\n")
				return strings.Contains(list[1], "iif sr-")
			})
			netnstest.Shell(t, w.host, "nft flush ruleset")
			if got, err := exchangeWithin(one, "udp", internetIPv4+":82", time.Second); err == nil || len(heard) > 0 {
				t.Errorf("a packet got out: %q", got)
			}
			if isLate {
				netnstest.Shell(t, w.host, "ip rule del not fwmark 51820 table 7; ip rule del table main suppress_prefixlength 0; ip route flush table 7")
			}
			w.detach(t, nil, "s-one")
			if after := hostState(t, w); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}
