package integration

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// traces are all that sandboxes with a network change on the world's host.
func (w *networkWorld) traces(t *testing.T) string {
	t.Helper()
	state := netnstest.Shell(t, w.host, `ip -o link; ip -o address; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all
		ip neigh show nud permanent; nft list ruleset; grep . /proc/sys/net/ipv4/conf/*/forwarding /proc/sys/net/ipv6/conf/*/f*forwarding; cat /proc/sys/net/ipv4/ip_forward`)
	return state + "\n" + strings.Join(w.foreignConnections(t), "\n")
}

// foreignConnections are the tracked connections of the host that other addresses than its own began.
func (w *networkWorld) foreignConnections(t *testing.T) (found []string) {
	t.Helper()
	own := []netip.Addr{netip.MustParseAddr(worldServer), netip.MustParseAddr(worldServer6)}
	err := netns.Do(w.host, func() error {
		addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				own = append(own, ip.Unmap())
			}
		}
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range flows {
				source, _ := netip.AddrFromSlice(f.Forward.SrcIP)
				isOwn := source.Unmap().IsLoopback() || source.IsLinkLocalUnicast() || source.IsUnspecified()
				for _, a := range own {
					isOwn = isOwn || source.Unmap() == a
				}
				if !isOwn {
					found = append(found, f.String())
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// isBack holds that the world's host comes to be as before.
func (w *networkWorld) isBack(t *testing.T, what, before string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		now := w.traces(t)
		if now == before {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: before:\n%s\nnow:\n%s", what, before, now)
		}
	}
}

// A hundred sandboxes with full at once: each reaches the outside, and nothing of them stays.
func TestHundredFullSandboxesAtOnce(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, ":80")
	before := w.traces(t)
	c := newClientBy(w.sandboxes, func(cmd *exec.Cmd) *exec.Cmd { return netnstest.Command(cmd, w.host) })
	boxes := make([]*sandbox.Sandbox, 100)
	begin := time.Now()
	var making sync.WaitGroup
	for i := range boxes {
		making.Go(func() {
			box, err := c.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory, Network: sandbox.NetworkFull})
			if err != nil {
				t.Error(err)
				return
			}
			boxes[i] = box
		})
	}
	making.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d sandboxes in %v", len(boxes), time.Since(begin))
	begin = time.Now()
	var asking sync.WaitGroup
	for i, box := range boxes {
		asking.Go(func() {
			r, err := box.Exec(t.Context(), sandbox.Command{Args: []string{"bash", "-c", "cat < /dev/tcp/" + worldServer + "/80"}})
			if err != nil || string(r.Stdout) != "hello\n" {
				t.Errorf("sandbox %d: %+v, %v", i, r, err)
			}
		})
	}
	asking.Wait()
	t.Logf("each has asked the outside in %v", time.Since(begin))
	if len(w.foreignConnections(t)) == 0 {
		t.Error("no connection of a sandbox is tracked")
	}
	begin = time.Now()
	closeAll(t, boxes)
	t.Logf("gone in %v", time.Since(begin))
	c.end()
	w.isBack(t, "after the last one", before)
	t.Logf("nothing is left after %v", time.Since(begin))
}

// Commands with full are killed at random moments. After prune nothing of them is there.
func TestFullSandboxesKilledAtRandomMoments(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, ":80")
	before := w.traces(t)
	host, err := readHost()
	if err != nil {
		t.Fatal(err)
	}
	rounds := 50
	if os.Getenv(failpointsVariable) == "all" {
		rounds = 200
	}
	visit := append([]string{"do", "--network", "full"}, hello(worldServer, "80")...)
	killed := 0
	for i := range rounds {
		switch i % 3 {
		case 0:
			killed += w.killedSoon(t, visit...)
		case 1:
			killed += w.killedSoon(t, "up", "--network", "full", "box")
		case 2:
			if got := w.on(t, "up", "--network", "full", "box"); got.code != 0 {
				t.Fatalf("round %d: %+v", i, got)
			}
			killed += w.killedSoon(t, "down", "box")
		}
		if got := w.on(t, "prune"); got.code != 0 || got.stderr != "" {
			t.Fatalf("round %d: prune: %+v", i, got)
		}
		if exists(w.root + "/@sandboxes/box") { // it was up already, or still
			if got := w.on(t, "down", "box"); got.code != 0 {
				t.Fatalf("round %d: down: %+v", i, got)
			}
		}
		w.isBack(t, "after prune", before)
	}
	if killed < rounds/4 {
		t.Errorf("only %d of %d commands were killed before they ended", killed, rounds)
	}
	if left := host.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// killedSoon returns 1 if the command was killed, and 0 if the command had ended before.
func (w *networkWorld) killedSoon(t *testing.T, args ...string) int {
	t.Helper()
	p := begin(t, netnstest.Command(w.command(args...), w.host))
	time.Sleep(rand.N(150 * time.Millisecond))
	p.kill()
	if p.cmd.ProcessState.Exited() {
		return 0
	}
	return 1
}
