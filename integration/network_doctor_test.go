package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// networkFindings is the part of doctor's report about the network.
type networkFindings struct {
	Network struct {
		Flushed  bool
		Barriers []struct {
			Chain string
			Fix   []string
		}
		Repaired []string
		Error    string
	}
}

func (w *networkWorld) doctor(t *testing.T, flags ...string) (found networkFindings) {
	t.Helper()
	decode(t, w.on(t, append([]string{"doctor", "--json"}, flags...)...).stdout, &found)
	if found.Network.Error != "" {
		t.Errorf("doctor: %s", found.Network.Error)
	}
	return found
}

// doctor sees a flushed firewall, and a firewall that refuses the packets of sandboxes. doctor --repair
// mends both, and adds only the rules that doctor names.
func TestDoctorRepairsTheNetwork(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, ":80")
	if got := w.on(t, "up", "--network", "full", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { w.on(t, "down", "box") })
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(w.root, link); err != nil {
		t.Fatal(err)
	}
	linked := &networkWorld{&sandboxes{t: t, root: link}, w.host, w.outside}
	if found := linked.doctor(t).Network; found.Flushed {
		t.Errorf("doctor, by another path of the state root: %+v", found)
	}
	netnstest.Shell(t, w.host, `nft 'flush ruleset; add table inet own; add chain inet own fw { type filter hook forward priority 0; policy drop; }'`)
	before := w.doctor(t).Network
	if !before.Flushed || len(before.Barriers) != 1 || before.Barriers[0].Chain != "inet own fw" || len(before.Barriers[0].Fix) != 2 {
		t.Fatalf("doctor: %+v", before)
	}
	if rules := netnstest.Shell(t, w.host, "nft list ruleset"); strings.Contains(rules, "sr-") {
		t.Errorf("doctor without --repair has changed the firewall:\n%s", rules)
	}
	after := w.doctor(t, "--repair").Network
	if after.Flushed || len(after.Barriers) != 0 || len(after.Repaired) != 3 {
		t.Errorf("doctor --repair: %+v", after)
	}
	if rules := netnstest.Shell(t, w.host, "nft list table inet own"); strings.Count(rules, "sr-") != 2 {
		t.Errorf("doctor --repair added other rules:\n%s", rules)
	}
	if got := w.on(t, append([]string{"exec", "box"}, hello(worldServer, "80")...)...); got.stdout != "hello\n" {
		t.Errorf("after the repair: %+v", got)
	}
	if got := w.on(t, "doctor"); !strings.Contains(got.stdout, "doctor found no firewall of this host that refuses their packets") {
		t.Errorf("doctor: %+v", got)
	}
}
