package integration

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// A reachCase is a host with several networks. The sandbox must reach what the host reaches.
type reachCase struct {
	name  string
	build func(t *testing.T, w *networkWorld)
	// reach has the network at each address that the host reaches.
	reach map[string]string
	// allow are the private addresses in reach.
	allow []string
	// proxiedOnly says that a sandbox with full does not reach all of that yet.
	proxiedOnly bool
}

var reachCases = []reachCase{
	{"one card", func(*testing.T, *networkWorld) {}, map[string]string{worldServer: "outside", worldServer6: "outside"}, nil, false},
	{"a second card", func(t *testing.T, w *networkWorld) {
		w.card(t, "second", []string{"192.168.77.1/24", "9.7.7.1/24", "2600:7::1/64"}, []string{"192.168.77.9/24", "9.7.7.9/24", "2600:7::9/64"})
	}, map[string]string{worldServer: "outside", "192.168.77.9": "second", "9.7.7.9": "second", "2600:7::9": "second"}, []string{"192.168.77.9"}, true},
	{"a bridge with a database", func(t *testing.T, w *networkWorld) {
		w.bridge(t, "br0", []string{"172.30.0.1/24"}, []string{"172.30.0.9/24"})
	}, map[string]string{worldServer: "outside", "172.30.0.9": "br0"}, []string{"172.30.0.9"}, true},
	{"a VPN with half routes", func(t *testing.T, w *networkWorld) {
		w.startVPN(t, 0)
		netnstest.Shell(t, w.host, halfRoutes)
	}, map[string]string{worldServer: "outside", vpnBeyond: "office", vpnBeyond6: "office", vpnOffice: "office"}, []string{vpnOffice}, true},
	{"a VPN with policy routing", func(t *testing.T, w *networkWorld) {
		w.startVPN(t, vpnMark)
		netnstest.Shell(t, w.host, policyRoutes)
	}, map[string]string{worldServer: "outside", vpnBeyond: "office", vpnBeyond6: "office", vpnOffice: "office"}, []string{vpnOffice}, true},
	{"no IPv6", func(t *testing.T, w *networkWorld) { w.withoutFamily(t, "-6") }, map[string]string{worldServer: "outside"}, nil, false},
	{"IPv6 only", func(t *testing.T, w *networkWorld) { w.withoutFamily(t, "-4") }, map[string]string{worldServer6: "outside"}, nil, false},
}

// A sandbox with full, and one with proxied, reach what the host reaches, and are seen as the host.
func TestSandboxesReachWhatTheHostReaches(t *testing.T) {
	need(t, world())
	for _, c := range reachCases {
		t.Run(c.name, func(t *testing.T) {
			w := newHost(t)
			c.build(t, w)
			before := w.traces(t)
			full := []string{"up", "--network", "full"}
			for _, a := range c.allow {
				full = append(full, "--allow", a)
			}
			proxied := []string{"up", "--network", "proxied"}
			for a := range c.reach {
				proxied = append(proxied, "--allow", bracketed(a)+":80")
			}
			for name, up := range map[string][]string{"full": full, "proxied": proxied} {
				if name == "full" && c.proxiedOnly {
					continue
				}
				if got := w.on(t, append(up, name)...); got.code != 0 {
					t.Fatalf("%+v", got)
				}
				for address, network := range c.reach {
					if !strings.Contains(address, ":") || forwardsIPv6() || name == "proxied" {
						w.reachesAsHost(t, name, address, network)
					}
				}
				if got := w.on(t, "down", name); got.code != 0 {
					t.Errorf("%+v", got)
				}
			}
			w.isBack(t, "after the sandboxes", before)
		})
	}
}

func bracketed(address string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}
