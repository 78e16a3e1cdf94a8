package integration

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// A dockerd beside sandboxes with full, in one network namespace: no sandbox reaches a container, and
// Docker's network works before, during and after.
func TestDockerBesideFullSandboxes(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, ":80")
	w.serve(t, w.outside, ":81")
	d := newDocker(t)
	d.host = w.host
	d.start(t)
	importRoot(t, d.client("import", "-", "busybox"))
	c := d.cli(t)
	t.Cleanup(c.removeAll)
	id := c.start(serve, "--publish", "8080:80")
	address := c.address(id)
	docker := func(when string) {
		t.Helper()
		if got := netnstest.Shell(t, w.outside, tryFetchBy("http://"+worldHost+":8080/")); got != "hello" {
			t.Errorf("%s: a published port: %q", when, got)
		}
		c.want(c.once(fetch(address)), "hello\n")
		c.want(c.once("sleep 1 | nc "+worldServer+" 81"), "hello\n")
	}
	const settings = "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding"
	forwarding := netnstest.Shell(t, w.host, settings)
	rules := func() string {
		return netnstest.Shell(t, w.host, "nft -s list table ip nat; nft -s list table ip filter")
	}
	docker("before")

	if got := w.on(t, "doctor"); !strings.Contains(got.stdout, "iptables -I DOCKER-USER -i sr-+ -j ACCEPT") {
		t.Errorf("doctor names no rule: %+v", got)
	}
	untouched := rules()
	repair := w.command("doctor", "--repair")
	repair.Env = peerEnvironment(d.home)
	cmd := netnstest.Command(repair, w.host)
	cmd.Env = repair.Env
	if got := run(t, cmd); !strings.Contains(got.stdout, "repaired: iptables -I DOCKER-USER -i sr-+ -j ACCEPT") {
		t.Errorf("doctor --repair: %+v", got)
	}
	added := 0
	for line := range strings.Lines(rules()) {
		if !strings.Contains(untouched, line) {
			added++
		}
	}
	if added != 2 {
		t.Errorf("doctor --repair added %d rules:\n%s", added, rules())
	}

	w.upFull(t, "box")
	docker("during")
	if got := w.on(t, append([]string{"exec", "box"}, hello(worldServer, "81")...)...); got.stdout != "hello\n" {
		t.Errorf("the sandbox: %+v", got)
	}
	for _, to := range [][2]string{{address, "80"}, {worldHost, "8080"}, {"172.17.0.1", "8080"}} {
		if got := w.on(t, append([]string{"exec", "box"}, hello(to[0], to[1])...)...); got.code == 0 || strings.Contains(got.stderr, "timed out") {
			t.Errorf("a container at %s:%s: %+v", to[0], to[1], got)
		}
	}
	if got := netnstest.Shell(t, w.host, settings); got != forwarding {
		t.Errorf("forwarding was %s and is %s", forwarding, got)
	}
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := netnstest.Shell(t, w.host, settings); got != forwarding {
		t.Errorf("forwarding was %s and is %s", forwarding, got)
	}
	docker("after")
}

// tryFetchBy prints the content of an address.
func tryFetchBy(address string) string { return "curl -sS --max-time 3 " + address }

func (w *networkWorld) upFull(t *testing.T, name string) {
	t.Helper()
	if got := w.on(t, "up", "--network", "full", name); got.code != 0 {
		t.Fatalf("%+v", got)
	}
}
