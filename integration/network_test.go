package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Addresses in a private world: a host, and a server outside.
const (
	worldHost, worldServer   = "9.9.9.1", "9.9.9.9"
	worldHost6, worldServer6 = "2600:9::1", "2600:9::9"
)

// A networkWorld is a host and the outside, as network namespaces of the test.
type networkWorld struct {
	*sandboxes
	host, outside *os.File
}

func newNetworkWorld(t *testing.T) *networkWorld {
	t.Helper()
	w := &networkWorld{sandboxes: newSandboxes(t), host: netnstest.New(t), outside: netnstest.New(t)}
	netnstest.Shell(t, w.host, "ip link add wan type veth peer name lan && ip link set lan netns /proc/self/fd/4", w.outside)
	netnstest.Shell(t, w.host, "ip link set wan addrgenmode none up && ip address add "+worldHost+"/24 dev wan && ip route add default via "+worldServer+
		" && ip address add "+worldHost6+"/64 dev wan nodad && ip route add default via "+worldServer6)
	netnstest.Shell(t, w.outside, "ip link set lan up && ip address add "+worldServer+"/24 dev lan && ip address add "+worldServer6+"/64 dev lan nodad")
	eventually(t, "the link is up", func() bool { return strings.Contains(netnstest.Shell(t, w.host, "ip -o link show wan"), "state UP") })
	eventually(t, "the link has its address", func() bool { // the kernel gives an IPv6 address its route later
		return strings.Contains(netnstest.Shell(t, w.host, "ip -6 route show table local"), "local "+worldHost6+" dev wan")
	})
	return w
}

// on runs the runtime on the world's host.
func (w *networkWorld) on(t *testing.T, args ...string) result {
	t.Helper()
	return run(t, netnstest.Command(w.command(args...), w.host))
}

// serve answers each connection at the address with a word.
func (w *networkWorld) serve(t *testing.T, namespace *os.File, address string) {
	t.Helper()
	l := netnstest.Listen(t, namespace, address)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello\n"))
			c.Close()
		}
	}()
}

// hello is a command that prints the word of a server.
func hello(address, port string) []string {
	return []string{"--", "bash", "-c", "exec 3<>/dev/tcp/" + address + "/" + port + "; cat <&3"}
}

func TestFullReachesTheOutside(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	w.serve(t, w.host, worldHost+":80")
	before := netnstest.Shell(t, w.host, "ip -o link; ip rule; nft list ruleset; cat /proc/sys/net/ipv4/conf/*/forwarding")

	if got := w.on(t, append([]string{"do", "--network", "full"}, hello(worldServer, "80")...)...); got.stdout != "hello\n" {
		t.Errorf("outside: %+v", got)
	}
	for name, args := range map[string][]string{
		"the host":   append([]string{"do", "--network", "full"}, hello(worldHost, "80")...),
		"denied":     append([]string{"do", "--network", "full", "--deny", worldServer + ":80"}, hello(worldServer, "80")...),
		"no network": append([]string{"do"}, hello(worldServer, "80")...),
	} {
		if got := w.on(t, args...); got.code == 0 || strings.Contains(got.stdout, "hello") || strings.Contains(got.stderr, "timed out") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := w.on(t, "do", "--", "cat", "/etc/resolv.conf"); got.stdout != "nameserver 198.18.0.1\n" {
		t.Errorf("resolv.conf: %+v", got)
	}
	ranged := func(cidr string, args ...string) result {
		return w.on(t, append([]string{"--network-range", cidr}, args...)...)
	}
	if got := ranged("10.99.0.0/18", "up", "--network", "full", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := w.on(t, "inspect", "box"); !strings.Contains(got.stdout, `"10.99.`) {
		t.Errorf("the range: %+v", got)
	}
	for cidr, says := range map[string]string{"10.98.0.0/18": "addresses of 10.99.0.0/18", "10.0.0.0/24": "--network-range: 10.0.0.0/24 has no room"} {
		if got := ranged(cidr, "do", "--network", "full", "--", "true"); got.code != 125 || !strings.Contains(got.stderr, says) {
			t.Errorf("%s: %+v", cidr, got)
		}
	}
	if got := w.on(t, append([]string{"exec", "box"}, hello(worldServer, "80")...)...); got.stdout != "hello\n" {
		t.Errorf("exec: %+v", got)
	}
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if after := netnstest.Shell(t, w.host, "ip -o link; ip rule; nft list ruleset; cat /proc/sys/net/ipv4/conf/*/forwarding"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// An empty directory stands for that of an older kernel. A second mount of proc keeps the right of
// sandboxes to mount their own.
func TestANoteSaysThatFullIsIPv4Only(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	do := w.command("do", "--json", "--network", "full", "--", "true").Args
	old := "mount -n -t proc proc " + t.TempDir() + " && mount -n -t tmpfs none /proc/sys/net/ipv6/conf/default && exec " + strings.Join(do, " ")
	got := run(t, netnstest.Command(exec.Command("unshare", "--mount", "sh", "-c", old), w.host))
	var r struct{ Notes []string }
	decode(t, got.stdout, &r)
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "only IPv4") {
		t.Errorf("%+v", got)
	}
	if forwardsIPv6() {
		if got := w.on(t, "do", "--json", "--network", "full", "--", "true"); strings.Contains(got.stdout, "IPv4") {
			t.Errorf("on this kernel: %+v", got)
		}
	}
}

func forwardsIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6/conf/default/force_forwarding")
	return err == nil
}

// A killed command leaves nothing after prune.
func TestPruneRemovesTheNetworkOfAKilledCommand(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	before := netnstest.Shell(t, w.host, "ip -o link; ip rule; nft list ruleset; cat /proc/sys/net/ipv4/conf/*/forwarding")
	cmd := netnstest.Command(w.command("do", "--network", "full", "--", "sleep", "100"), w.host)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pin := filepath.Join(w.root, "@network", "resolver")
	eventually(t, "the network is up", func() bool { _, err := os.Stat(pin); return err == nil })
	if got := w.on(t, "up", "--network", "full", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if got := w.on(t, "prune"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := w.on(t, append([]string{"exec", "box"}, hello(worldServer, "80")...)...); got.stdout != "hello\n" {
		t.Errorf("another sandbox after prune: %+v", got)
	}
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	eventually(t, "prune removes the network", func() bool {
		if got := w.on(t, "prune"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		return netnstest.Shell(t, w.host, "ip -o link; ip rule; nft list ruleset; cat /proc/sys/net/ipv4/conf/*/forwarding") == before
	})
}

// word is a command on the world's host that prints the word of a server, or fails.
func (w *networkWorld) word(t *testing.T, address, port string) result {
	t.Helper()
	args := hello(address, port)[1:]
	return run(t, netnstest.Command(exec.Command(args[0], args[1:]...), w.host))
}

// A server on the sandbox's own 127.0.0.1 answers on a port of the host, until the sandbox ends.
func TestUpPublishesPorts(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	if got := w.on(t, "up", "--network", "full", "--publish", "8080:8000", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	server := "import socket\ns = socket.create_server(('127.0.0.1', 8000))\nwhile True:\n c, _ = s.accept()\n c.sendall(b'hello\\n')\n c.close()"
	if got := w.on(t, "exec", "--detach", "box", "python3", "-c", server); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	eventually(t, "the server answers", func() bool { return w.word(t, "127.0.0.1", "8080").stdout == "hello\n" })
	if got := w.word(t, worldHost, "8080"); got.code == 0 {
		t.Errorf("at another address of the host: %+v", got)
	}
	if got := w.on(t, "inspect", "box"); !strings.Contains(got.stdout, `"8080:8000"`) || !strings.Contains(got.stdout, `"network_addresses"`) {
		t.Errorf("inspect: %+v", got)
	}
	if got := w.on(t, "up", "--network", "full", "--publish", "8080:81", "other"); got.code != 1 ||
		!strings.Contains(got.stderr, "--publish 127.0.0.1:8080:81: ") || !strings.Contains(got.stderr, "address already in use") {
		t.Errorf("a taken port: %+v", got)
	}
	if got := w.on(t, "do", "--network", "full", "--publish", "8081:80", "--", "true"); got.code != 0 {
		t.Errorf("do: %+v", got)
	}
	closed := func(after, port string) {
		t.Helper()
		if got := w.word(t, "127.0.0.1", port); got.code == 0 || !strings.Contains(got.stderr, "Connection refused") {
			t.Errorf("port %s after %s: %+v", port, after, got)
		}
	}
	closed("do", "8081")
	for _, network := range []string{"none", "full"} {
		if got := w.on(t, "network", "box", network); got.code != 0 {
			t.Errorf("%+v", got)
		}
		closed("a change to "+network, "8080")
	}
	if got := w.on(t, "inspect", "box"); strings.Contains(got.stdout, `"8080:8000"`) {
		t.Errorf("inspect after a change: %+v", got)
	}
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := w.on(t, "up", "--network", "full", "--publish", "8080:8000", "box"); got.code != 0 {
		t.Errorf("the port is free again: %+v", got)
	}
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	closed("down", "8080")
	if entries, err := os.ReadDir(filepath.Join(w.root, "@network")); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// neededCapabilities are those of docs/kernel.md.
var neededCapabilities = []string{"chown", "dac_override", "fowner", "kill", "setgid", "setuid", "net_admin", "sys_admin", "sys_chroot", "sys_ptrace"}

// Root makes sandboxes with the capabilities that the documentation names. Each of them is
// necessary.
func TestRootNeedsTheCapabilitiesOfTheDocumentation(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	with := func(capabilities []string, args ...string) result {
		cmd := w.command(args...)
		bound := "-all,+" + strings.Join(capabilities, ",+")
		return run(t, netnstest.Command(exec.Command("setpriv", append([]string{"--bounding-set", bound, "--inh-caps", "-all"}, cmd.Args...)...), w.host))
	}
	if got := with(neededCapabilities, "do", "--", "true"); got.code != 0 {
		t.Errorf("with all of them: %+v", got)
	}
	if got := with(append(slices.Clone(neededCapabilities), "net_bind_service"), "do", "--network", "full", "--", "true"); got.code != 0 {
		t.Errorf("with a network: %+v", got)
	}
	for i, c := range neededCapabilities {
		if got := with(slices.Delete(slices.Clone(neededCapabilities), i, i+1), "do", "--", "true"); got.code == 0 {
			t.Errorf("without %s: %+v", c, got)
		}
	}
	// Without CAP_KILL a failed start cannot clean up after itself.
	if got := w.on(t, "prune"); got.code != 0 {
		t.Errorf("prune: %+v", got)
	}
}

// The launcher connects a sandbox while it starts PID 1. A failure fails the creation, and nothing
// is left.
func TestASandboxThatCannotBeConnectedIsNotMade(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	netnstest.Shell(t, w.host, "for net in 10.0.0.0/8 172.16.0.0/12 100.64.0.0/10 192.168.0.0/16; do ip route add unreachable $net; done")
	look := func() string { return netnstest.Shell(t, w.host, "ip -o link; ip rule; nft list ruleset") }
	before := look()
	got := w.on(t, "do", "--network", "full", "--", "true")
	if got.code != 125 || !strings.Contains(got.stderr, "no range is left for sandboxes") {
		t.Errorf("%+v", got)
	}
	if after := look(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if got := w.on(t, "prune"); got.stdout != "" || got.code != 0 {
		t.Errorf("something was left: %+v", got)
	}
}
