package integration

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// A reachCase is a host with several networks. The sandbox must reach the same networks as the host.
type reachCase struct {
	name  string
	build func(t *testing.T, w *networkWorld)
	// reach has the network at each address that the host reaches.
	reach map[string]string
	// allow are the private addresses in reach.
	allow []string
}

var reachCases = []reachCase{
	{"one card", func(*testing.T, *networkWorld) {}, map[string]string{worldServer: "outside", worldServer6: "outside"}, nil},
	{"a second card", func(t *testing.T, w *networkWorld) {
		w.card(t, "second", []string{"192.168.77.1/24", "9.7.7.1/24", "2600:7::1/64"}, []string{"192.168.77.9/24", "9.7.7.9/24", "2600:7::9/64"})
	}, map[string]string{worldServer: "outside", "192.168.77.9": "second", "9.7.7.9": "second", "2600:7::9": "second"}, []string{"192.168.77.9"}},
	{"a bridge with a database", func(t *testing.T, w *networkWorld) {
		w.bridge(t, "br0", []string{"172.30.0.1/24"}, []string{"172.30.0.9/24"})
	}, map[string]string{worldServer: "outside", "172.30.0.9": "br0"}, []string{"172.30.0.9"}},
	{"a VPN with half routes", func(t *testing.T, w *networkWorld) {
		w.startVPN(t, 0)
		netnstest.Shell(t, w.host, halfRoutes)
	}, map[string]string{worldServer: "outside", vpnBeyond: "office", vpnBeyond6: "office", vpnOffice: "office"}, []string{vpnOffice}},
	{"a VPN with policy routing", func(t *testing.T, w *networkWorld) {
		w.startVPN(t, vpnMark)
		netnstest.Shell(t, w.host, policyRoutes)
	}, map[string]string{worldServer: "outside", vpnBeyond: "office", vpnBeyond6: "office", vpnOffice: "office"}, []string{vpnOffice}},
	{"no IPv6", func(t *testing.T, w *networkWorld) { w.withoutFamily(t, "-6") }, map[string]string{worldServer: "outside"}, nil},
	{"IPv6 only", func(t *testing.T, w *networkWorld) { w.withoutFamily(t, "-4") }, map[string]string{worldServer6: "outside"}, nil},
}

// A sandbox with full, and one with proxied, reach the same networks as the host. The networks see the host.
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

// A running sandbox follows VPNs that come and go: its next connection goes where the host's goes.
func TestRunningSandboxesFollowTheHost(t *testing.T) {
	need(t, world())
	for name, vpn := range map[string]struct {
		mark       int
		begin, end string
	}{"half routes": {0, halfRoutes, endHalves}, "policy routing": {vpnMark, policyRoutes, endPolicy}} {
		t.Run(name, func(t *testing.T) {
			w := newHost(t)
			farNetwork{"outside", w.outside}.answersAt(t, vpnBeyond)
			for _, network := range []string{"full", "proxied"} {
				if got := w.on(t, "up", "--network", network, "--allow", vpnBeyond+":80", network); got.code != 0 {
					t.Fatalf("%+v", got)
				}
				w.reachesAsHost(t, network, vpnBeyond, "outside")
			}
			w.startVPN(t, vpn.mark)
			netnstest.Shell(t, w.host, vpn.begin)
			for _, box := range []string{"full", "proxied"} {
				w.follows(t, box, vpnBeyond, "office")
			}
			w.passesMuch(t, "full", vpnBeyond)
			netnstest.Shell(t, w.host, vpn.end)
			for _, box := range []string{"full", "proxied"} {
				w.follows(t, box, vpnBeyond, "outside")
				if got := w.on(t, "down", box); got.code != 0 {
					t.Errorf("%+v", got)
				}
			}
		})
	}
}

// answersAt gives the network one more address.
func (n farNetwork) answersAt(t *testing.T, address string) {
	t.Helper()
	netnstest.Shell(t, n.namespace, "ip link set lo up && ip address add "+address+"/32 dev lo")
}

// follows waits until the sandbox reaches the network at the address, as the host does.
func (w *networkWorld) follows(t *testing.T, box, address, network string) {
	t.Helper()
	eventually(t, box+" reaches "+network, func() bool { return strings.HasPrefix(w.tells(t, box, address).stdout, network+" ") })
	w.reachesAsHost(t, box, address, network)
}

// passesMuch sends a megabyte through the VPN, whose MTU is smaller than that of the sandbox: the host's ICMP messages
// must reach the sandbox.
func (w *networkWorld) passesMuch(t *testing.T, box, address string) {
	t.Helper()
	script := "exec 3<>/dev/tcp/" + address + "/81; head -c 1000000 /dev/zero >&3; echo end >&3; cat <&3"
	if got := w.on(t, "exec", box, "timeout", "60", "bash", "-c", script); got.stdout != "1000004\n" {
		t.Errorf("a megabyte: %+v", got)
	}
}

// The doctor names a firewall that refuses the packets of sandboxes. Its commands open the way to each network.
func TestAFirewallIsOpenedForAllNetworks(t *testing.T) {
	need(t, world())
	w := newHost(t)
	w.card(t, "second", []string{"9.7.7.1/24"}, []string{"9.7.7.9/24"})
	netnstest.Shell(t, w.host, `nft 'add table inet own; add chain inet own fw { type filter hook forward priority 0; policy drop; }'`)
	if got := w.on(t, "up", "--network", "full", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if found := w.doctor(t).Network; len(found.Barriers) != 1 || found.Barriers[0].Chain != "inet own fw" {
		t.Errorf("doctor: %+v", found)
	}
	w.doctor(t, "--repair")
	w.reachesAsHost(t, "box", worldServer, "outside")
	w.reachesAsHost(t, "box", "9.7.7.9", "second")
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}
