package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// setResolv makes a text the host's resolv.conf(5).
func setResolv(t *testing.T, text string) {
	t.Helper()
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	writeFile(t, resolv, text)
	for dir := filepath.Dir(resolv); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // the resolver is no root
			t.Fatal(err)
		}
	}
	if err := unix.Mount(resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc/resolv.conf", 0); err != nil {
			t.Error(err)
		}
	})
}

// serveZone is a name server that knows the addresses of some names. It says of other names that end in the zone that
// they do not exist, and refuses the rest.
func serveZone(t *testing.T, namespace *os.File, address, zone string, known map[string][4]byte) {
	t.Helper()
	var c net.PacketConn
	err := netns.Do(namespace, func() (err error) {
		c, err = net.ListenPacket("udp", address+":53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, peer, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			q := m.Questions[0]
			name := strings.TrimSuffix(q.Name.String(), ".")
			a, isKnown := known[name]
			switch {
			case isKnown && q.Type == dnsmessage.TypeA:
				h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
				m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AResource{A: a}}}
			case isKnown:
			case strings.HasSuffix(name, zone):
				m.RCode = dnsmessage.RCodeNameError
			default:
				m.RCode = dnsmessage.RCodeRefused
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(packed, peer)
			}
		}
	}()
}

// newSplitWorld is a host with split DNS: a local server knows the names of a company and refuses others, and one
// outside knows public names.
func newSplitWorld(t *testing.T) *networkWorld {
	t.Helper()
	w := newNetworkWorld(t)
	server := [4]byte{9, 9, 9, 9}
	serveZone(t, w.host, "127.0.0.53", ".corp.example", map[string][4]byte{"db.corp.example": server, "a.team.corp.example": server})
	serveZone(t, w.outside, worldServer, "", map[string][4]byte{"public.test": server, "b.c": server})
	w.serve(t, w.outside, worldServer+":80")
	return w
}

// A sandbox with a network finds the names that the host finds, by the search domains and all name servers of the host.
func TestNetworkHasTheHostsNames(t *testing.T) {
	need(t, world())
	w := newSplitWorld(t)
	setResolv(t, "search lab.corp.example corp.example\noptions ndots:2 timeout:1\nnameserver 127.0.0.53\nnameserver "+worldServer+"\n")
	const show = "cat /etc/resolv.conf"
	search := "nameserver 198.18.0.1\nsearch lab.corp.example corp.example\n"
	for _, x := range []struct {
		network []string
		resolv  string
	}{
		{nil, "nameserver 198.18.0.1\n"},
		{[]string{"--network", "full"}, search + "options ndots:2\n"},
		{[]string{"--allow", "db.corp.example", "--allow", "a.team.corp.example", "--allow", "public.test", "--allow", worldServer}, search},
	} {
		do := func(line string) result {
			return w.on(t, append(append([]string{"do"}, x.network...), "--", "bash", "-c", line)...)
		}
		if got := do(show); got.stdout != x.resolv {
			t.Errorf("%q: %+v, want %q", x.network, got, x.resolv)
		}
		if x.network == nil {
			continue
		}
		for _, name := range []string{"db", "db.corp.example", "a.team", "public.test"} {
			if got := do("exec 3<>/dev/tcp/" + name + "/80; cat <&3"); got.stdout != "hello\n" {
				t.Errorf("%q, %s: %+v", x.network, name, got)
			}
		}
		for _, name := range []string{"nothing", "nothing.corp.example", "corp"} {
			if got := do("getent ahosts " + name); got.code != 2 || got.stdout != "" {
				t.Errorf("%q, %s: %+v", x.network, name, got)
			}
		}
	}
}

// A line that no C library would understand breaks no sandbox.
func TestNetworkOutlivesOddSearchDomains(t *testing.T) {
	need(t, world())
	w := newSplitWorld(t)
	long := strings.Repeat("a", 60) + ".example"
	many := strings.TrimSpace(strings.Repeat(long+" ", 8))
	setResolv(t, "nameserver 127.0.0.53\nnameserver "+worldServer+"\nsearch gone.example\n"+
		"search . a..b x\x01y "+strings.Repeat("x", 300)+" "+many+" corp.example\noptions ndots:-7 "+strings.Repeat("y", 70000)+"\n")
	for _, network := range [][]string{{"--network", "full"}, {"--allow", "db.corp.example"}} {
		got := w.on(t, append(append([]string{"do"}, network...), "--", "bash", "-c", "cat /etc/resolv.conf; exec 3<>/dev/tcp/db/80; cat <&3")...)
		want := "nameserver 198.18.0.1\nsearch " + strings.Join(strings.Fields(many)[:3], " ") + "\nsearch " + many + " corp.example\nhello\n"
		if got.stdout != want {
			t.Errorf("%q: %+v, want %q", network, got, want)
		}
	}
}

// A sandbox of a pool is made without a network, and gets the search domains with the network.
func TestNetworkOfAPoolHasSearchDomains(t *testing.T) {
	need(t, world())
	w := newSplitWorld(t)
	setResolv(t, "search corp.example\nnameserver 127.0.0.53\n")
	socket := filepath.Join(openDir(t), "s")
	p := &launcherProcess{start(t, netnstest.Command(w.command("launcher", "--socket", socket, "--pool", "min=1,max=2"), w.host)), socket}
	t.Cleanup(p.leave)
	eventually(t, "the launcher listens", func() bool { return strings.Contains(p.stderr(), "listening") })
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, x := range []struct{ flag, value, want string }{
		{"--network", "full", "nameserver 198.18.0.1\nsearch corp.example\n"},
		{"--allow", "db.corp.example", "nameserver 198.18.0.1\nsearch corp.example\n"},
		{"--network", "none", "nameserver 198.18.0.1\n"},
	} {
		eventually(t, "a blank", func() bool { s, err := m.PoolStats(t.Context()); return err == nil && s.Ready > 0 })
		before, err := m.PoolStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := run(t, exec.Command(binary(t), "--socket", socket, "do", x.flag, x.value, "--", "cat", "/etc/resolv.conf"))
		after, err := m.PoolStats(t.Context())
		if got.stdout != x.want || err != nil || after.Hits != before.Hits+1 {
			t.Errorf("%s %s: %+v; %+v, %v", x.flag, x.value, got, after, err)
		}
	}
}

// Programs send the short name to the proxy, and to the server as the host of a request.
func TestProxiedRequestsHaveShortNames(t *testing.T) {
	need(t, world())
	w := newSplitWorld(t)
	setResolv(t, "search lab.corp.example Corp.Example\nnameserver 127.0.0.53\n")
	l := netnstest.Listen(t, w.outside, worldServer+":8000")
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.Host) })) //nolint:gosec // of a test
	}()
	for _, flags := range [][]string{nil, {"--noproxy", "*"}} {
		args := append([]string{"do", "--allow", "db.corp.example:8000", "--", "curl", "-sS"}, flags...)
		if got := w.on(t, append(args, "http://db:8000/")...); got.stdout != "hello db:8000" {
			t.Errorf("%q: %+v", flags, got)
		}
	}
}
