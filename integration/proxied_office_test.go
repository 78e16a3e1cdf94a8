package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Addresses of an office, and the password of its proxy.
const (
	officeDesk, officeDoor = "10.9.8.2", "10.9.8.1"
	officeUser             = "visitor"
	officePassword         = "pass word"
	squidAddress           = officeDoor + ":3128"
	tinyAddress            = officeDoor + ":3129"
	squidURL               = "http://" + officeUser + ":pass%20word@" + squidAddress
	tinyURL                = "http://" + officeUser + ":word@" + tinyAddress
)

// An officeWorld is a host that reaches the outside by a proxy only: it has no other route, and its name server does not
// answer. squid has the rules of Debian's configuration: a tunnel leads to port 443 alone. tinyproxy opens each tunnel.
type officeWorld struct {
	*proxiedWorld
	office *os.File
	dir    string
	squid  *testProcess
}

func newOfficeWorld(t *testing.T) *officeWorld {
	t.Helper()
	w := &officeWorld{proxiedWorld: newProxiedWorld(t), office: netnstest.New(t), dir: t.TempDir()}
	netnstest.Shell(t, w.host, "ip link add desk type veth peer name door && ip link set door netns /proc/self/fd/4 && ip link set wan netns /proc/self/fd/4", w.office)
	netnstest.Shell(t, w.office, "ip link set door up && ip address add "+officeDoor+"/24 dev door && ip link set wan up && ip address add "+worldHost+"/24 dev wan"+
		" && ip address add "+worldHost6+"/64 dev wan nodad")
	netnstest.Shell(t, w.host, "ip link set desk up && ip address add "+officeDesk+"/24 dev desk")
	eventually(t, "the links are up", func() bool {
		both := netnstest.Shell(t, w.host, "ip -o link show desk") + netnstest.Shell(t, w.office, "ip -o link show wan")
		return strings.Count(both, "state UP") == 2
	})
	w.squid = w.startSquid(t)
	w.startTiny(t)
	return w
}

// startSquid runs squid as another user than root, which squid refuses.
func (w *officeWorld) startSquid(t *testing.T) *testProcess {
	t.Helper()
	config, files := filepath.Join(w.dir, "squid.conf"), peer("usr/share/squid")
	hash := run(t, exec.Command("openssl", "passwd", "-apr1", officePassword))
	writeFile(t, filepath.Join(w.dir, "passwords"), officeUser+":"+hash.stdout)
	writeFile(t, config, fmt.Sprintf(`http_port %s
acl localnet src 10.0.0.0/8
acl SSL_ports port 443
acl Safe_ports port 80 21 443 70 210 1025-65535 280 488 591 777
http_access deny !Safe_ports
http_access deny CONNECT !SSL_ports
http_access deny to_localhost
auth_param basic program %s %s/passwords
acl visitors proxy_auth REQUIRED
http_access allow localnet visitors
http_access deny all
cache deny all
pid_filename none
access_log stdio:%[3]s/squid.log
cache_log %[3]s/squid.errors
coredump_dir %[3]s
mime_table %[4]s/mime.conf
icon_directory %[4]s/icons
error_directory %[4]s/errors/templates
unlinkd_program %[5]s
pinger_enable off
netdb_filename none
shutdown_lifetime 0 seconds
`, squidAddress, peer("usr/lib/squid/basic_ncsa_auth"), w.dir, files, peer("usr/lib/squid/unlinkd")))
	return w.startProxy(t, squidAddress, "unshare", "--user", "--map-user=1000", "--map-group=1000", peer("usr/sbin/squid"), "-N", "-f", config)
}

func (w *officeWorld) startTiny(t *testing.T) {
	t.Helper()
	config := filepath.Join(w.dir, "tinyproxy.conf")
	host, port, _ := net.SplitHostPort(tinyAddress)
	writeFile(t, config, fmt.Sprintf("Listen %s\nPort %s\nTimeout 600\nMaxClients 100\nBasicAuth %s word\n", host, port, officeUser))
	w.startProxy(t, tinyAddress, peer("usr/bin/tinyproxy"), "-d", "-c", config)
}

func (w *officeWorld) startProxy(t *testing.T, address, program string, args ...string) *testProcess {
	t.Helper()
	cmd := netnstest.Command(exec.Command(program, args...), w.office)
	cmd.Env = peerEnvironment(w.dir)
	d := daemon(t, cmd, func() {})
	host, port, _ := net.SplitHostPort(address)
	eventually(t, "the proxy listens", func() bool {
		return strings.Contains(netnstest.Shell(t, w.office, "ss -Hltn 'sport = :"+port+"'"), host+":"+port)
	})
	return d
}

// with runs the runtime on the host with more variables.
func (w *officeWorld) with(t *testing.T, env []string, args ...string) result {
	t.Helper()
	cmd := netnstest.Command(w.command(args...), w.host)
	cmd.Env = append(os.Environ(), env...)
	return run(t, cmd)
}

// tunnelled are clients that squid serves with Debian's rules, and others are clients that need a tunnel to another port.
var (
	tunnelled = []string{
		"curl", "curl over HTTP/2", "curl over plain HTTP", "curl with uploads", "curl with uploads over plain HTTP", "wget", "git over https",
		"git over plain HTTP", "pip", "python", "npm", "node", "WebSocket", "go", "apt", "apt over plain HTTP", "openssl",
	}
	otherTunnels = []string{"curl", "curl over plain HTTP", "git over ssh", "ssh", "psql", "WebSocket over plain HTTP", "git over plain HTTP", "apt over plain HTTP"}
)

// A host whose outside is reachable by a proxy only: clients reach the same names as on other hosts, and nothing else. The
// host does not look names up.
func TestClientsWorkThroughAnUpstreamProxy(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newOfficeWorld(t)
	for _, x := range []struct {
		proxy, url string
		clients    []string
	}{{"squid", squidURL, tunnelled}, {"tinyproxy", tinyURL, otherTunnels}} {
		flags := append(append([]string{"up", "--upstream-proxy", x.url}, w.flags(t, clientRules)...), "box")
		w.says(t, flags...)
		for _, name := range x.clients {
			t.Run(x.proxy+"/"+name, func(t *testing.T) {
				c := clientOf(t, name)
				need(t, c.missing())
				c.succeeds(t, w.proxiedWorld, "without a setting", noProxy)
				if _, hasSetting := settingClients[name]; hasSetting {
					c.succeeds(t, w.proxiedWorld, "with a setting", "")
				}
			})
		}
		got := w.on(t, "exec", "box", "python3", "-c", "import socket; print(socket.create_connection(('"+serverName+"', 7)).makefile().readline())")
		if speaksFirst := strings.HasPrefix(got.stdout, "hello\n"); speaksFirst != (x.proxy == "tinyproxy") {
			t.Errorf("%s: a server that speaks first: %+v", x.proxy, got)
		}
		if got := w.on(t, "exec", "box", "curl", "-sS", "https://"+forbiddenName); got.code == 0 {
			t.Errorf("%s: another name: %+v", x.proxy, got)
		}
		w.says(t, "down", "box")
	}
	ofProxies := []string{"1.8.9.10.in-addr.arpa:53", "2.8.9.10.in-addr.arpa:53"} // tinyproxy looks for the names of its clients
	w.outsideSees(t, append(ofProxies, clientRules...), "tls "+serverName, "http "+serverName)
}

// curlOf is a command that gets a word from the server outside, and one from the same server by plain HTTP.
func curlOf(scheme string) []string {
	return []string{"curl", "--noproxy", "*", "-sS", "--max-time", "60", scheme + "://" + serverName + "/hello"}
}

// The setting of the environment counts by the usual rules. It stays with a sandbox, and another one replaces it. No
// other place has the password.
func TestTheUpstreamProxyOfASandboxStays(t *testing.T) {
	need(t, world(), peers())
	w := newOfficeWorld(t)
	w.serve(t, w.office, officeDoor+":7")
	env := []string{"https_proxy=" + squidURL, "HTTP_PROXY=" + squidURL, "NO_PROXY=direct.test"}
	trust := []string{"--bind", w.trusted + ":" + trustedInside}
	up := append(append([]string{"up", "--upstream-proxy", "env", "--allow", serverName, "--allow", officeDoor + ":7"}, trust...), "box")
	if got := w.with(t, env, up...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { w.on(t, "down", "box") })
	reaches := func(when string) {
		t.Helper()
		for _, scheme := range []string{"http", "https"} {
			if got := w.on(t, append([]string{"exec", "box"}, curlOf(scheme)...)...); got.stdout != "hello\n" {
				t.Errorf("%s, %s: %+v", when, scheme, got)
			}
		}
		if got := w.on(t, append([]string{"exec", "box"}, hello(officeDoor, "7")...)...); got.stdout != "hello\n" {
			t.Errorf("%s, an address that is not public: %+v", when, got)
		}
	}
	reaches("after up")
	for _, kind := range []string{workerOfEgress, parentOfEgress} {
		kill(t, w.egressProcesses(t, kind)[0].Pid, unix.SIGKILL)
		eventually(t, "the end of the worker", func() bool {
			return kind == workerOfEgress || len(w.egressProcesses(t, workerOfEgress)) == 0
		})
		eventually(t, "another worker", func() bool {
			return w.on(t, append([]string{"exec", "box"}, curlOf("http")...)...).stdout == "hello\n"
		})
		reaches("after the end of the " + kind)
	}
	w.hidesThePassword(t)

	w.says(t, "network", "box", "proxied", "--allow", serverName)
	if got := w.on(t, append([]string{"exec", "box"}, curlOf("http")...)...); got.stdout == "hello\n" {
		t.Errorf("without the upstream proxy: %+v", got)
	}
	change := w.change(t, "box", "proxied", "--allow", serverName, "--allow", officeDoor+":7", "--upstream-proxy", squidURL)
	if !strings.Contains(change.Message, "other rules") {
		t.Errorf("%+v", change)
	}
	reaches("after a change")
	if got := w.says(t, "network", "box"); !strings.Contains(got, "upstream proxy http://"+squidAddress) {
		t.Errorf("network: %s", got)
	}
	w.hidesThePassword(t)
	w.says(t, "network", "box", "none")
	record, err := os.ReadFile(filepath.Join(w.root, "@sandboxes", "box", "sandbox.json"))
	if err != nil || strings.Contains(string(record), "pass%20word") {
		t.Errorf("the record of a sandbox without a network: %v, %s", err, record)
	}
}

// hidesThePassword looks for the password where other people can read, and in box.
func (w *officeWorld) hidesThePassword(t *testing.T) {
	t.Helper()
	texts := map[string]string{
		"inside": w.says(t, "exec", "box", "sh", "-c", "env; cat /etc/resolv.conf /proc/*/cmdline"),
	}
	for _, args := range [][]string{{"inspect", "box"}, {"network", "--json", "box"}, {"network", "box"}, {"list", "--format", "json"}, {"state", "box"}, {"stats", "--json", "box"}} {
		texts[strings.Join(args, " ")] = w.on(t, args...).stdout
	}
	events, err := filepath.Glob(filepath.Join(w.root, "@egress", "boxes", "*", "*"))
	if err != nil || len(events) == 0 {
		t.Errorf("no files of the proxied network: %v", err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(events, lines...) {
		text, err := os.ReadFile(path)
		if err == nil {
			texts[path] = string(text)
		}
	}
	for place, text := range texts {
		for _, secret := range []string{"pass%20word", officePassword, officeUser + ":", "dmlzaXRvcjpwYXNzIHdvcmQ"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q", place, secret)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(w.root, "@sandboxes", "box", "sandbox.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record: %v, %v", info, err)
	}
}

// A refusal of the upstream proxy ends the connection at once. The Result and the log name the proxy and the way out.
func TestTheResultNamesTheUpstreamProxy(t *testing.T) {
	need(t, world(), peers())
	w := newOfficeWorld(t)
	do := func(env []string, flags ...string) (violations []string) {
		t.Helper()
		args := append([]string{"do", "--json", "--allow", serverName, "--allow", serverName + ":22"}, flags...)
		got := w.with(t, env, args...)
		var r sandbox.Result
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
			t.Fatalf("%q: %v: %+v", flags, err, got)
		}
		for _, v := range r.Violations {
			violations = append(violations, v.Kind+": "+v.Detail)
		}
		return violations
	}
	https, ssh := append([]string{"--"}, curlOf("https")...), append([]string{"--"}, hello(serverName, "22")[1:]...)
	wrong := "http://visitor:wrong@" + squidAddress
	inEnvironment := []string{"HTTPS_PROXY=" + squidURL}
	for _, x := range []struct {
		name  string
		env   []string
		flags []string
		want  string
	}{
		{"a wrong password", nil, append([]string{"--upstream-proxy", wrong}, https...), "http://" + squidAddress + " answers CONNECT " + serverName + ":443 with 407"},
		{"a wrong password, plain HTTP", nil, append([]string{"--upstream-proxy", wrong, "--"}, curlOf("http")...), "http://" + squidAddress + " answers requests of plain HTTP with 407"},
		{"a closed port", nil, append([]string{"--upstream-proxy", squidURL}, ssh...), "http://" + squidAddress + " answers CONNECT " + serverName + ":22 with 403"},
		{"no proxy there", nil, append([]string{"--upstream-proxy", "http://" + officeDoor + ":9"}, https...), "http://" + officeDoor + ":9 cannot be used: connection refused"},
		{"no flag", inEnvironment, https, "add --upstream-proxy env"},
		{"no proxy in the environment", nil, append([]string{"--upstream-proxy", "env"}, https...), "sudo -E"},
	} {
		got := do(x.env, x.flags...)
		if !slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, "network: ") && strings.Contains(v, x.want) }) {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
	if got := do(inEnvironment, append([]string{"--upstream-proxy", "env"}, append([]string{"--bind", w.trusted + ":" + trustedInside}, https...)...)...); len(got) > 0 {
		t.Errorf("a connection that works: %q", got)
	}
}

// The worker reads the authorities of the host, although it can open no other files.
func TestAnUpstreamProxyWithTLS(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newOfficeWorld(t)
	const address = officeDoor + ":3130"
	certificate := w.authority.issueFor(t, nil, []net.IP{net.ParseIP(officeDoor)})
	l := tls.NewListener(netnstest.Listen(t, w.office, address), &tls.Config{Certificates: []tls.Certificate{certificate}})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.passToSquid(c)
		}
	}()
	url := strings.NewReplacer("http:", "https:", squidAddress, address).Replace(squidURL)
	flags := []string{"do", "--json", "--upstream-proxy", url, "--allow", serverName, "--bind", w.trusted + ":" + trustedInside, "--"}
	if got := w.on(t, append(flags, curlOf("https")...)...); !strings.Contains(got.stdout, "https://"+address+" cannot be used: TLS: ") {
		t.Errorf("a proxy that the host does not trust: %+v", got)
	}
	if err := unix.Mount(w.trusted, trustedInside, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(trustedInside, 0); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the end of the worker without the authority", func() bool { return len(w.egressProcesses(t, workerOfEgress)) == 0 })
	for _, scheme := range []string{"http", "https"} {
		if got := w.on(t, append(flags, curlOf(scheme)...)...); !strings.Contains(got.stdout, `"stdout":"hello\n"`) {
			t.Errorf("%s: %+v", scheme, got)
		}
	}
}

// passToSquid copies both directions between a client and squid.
func (w *officeWorld) passToSquid(c net.Conn) {
	defer c.Close()
	var squid net.Conn
	err := netns.Do(w.office, func() (err error) {
		squid, err = net.Dial("tcp", squidAddress)
		return err
	})
	if err != nil {
		return
	}
	defer squid.Close()
	go func() {
		_, _ = io.Copy(squid, c)
		squid.Close()
	}()
	_, _ = io.Copy(c, squid)
}

func TestUpstreamProxiesThatAreRefused(t *testing.T) {
	need(t, world())
	s := newSandboxes(t)
	for _, x := range []struct{ flags, want string }{
		{"--upstream-proxy socks5://visitor:secret@a.test:1080 --allow a.test", `"socks5" is not supported`},
		{"--upstream-proxy http://visitor:secret@a.test:1080/path --allow a.test", "no path"},
		{"--upstream-proxy http://visitor:secret%zz@a.test --allow a.test", "not the URL of a proxy"},
		{"--upstream-proxy http://visitor:secret@a.test:99999 --allow a.test", "port"},
		{"--upstream-proxy http://visitor:secret@a.test", `needs the network "proxied"`},
		{"--upstream-proxy http://visitor:secret@a.test --network full", `needs the network "proxied"`},
		{"--upstream-proxy http://visitor:secret@a.test --observe", "name the destinations with allow"},
	} {
		got := run(t, s.command(append(append([]string{"do"}, strings.Fields(x.flags)...), "--", "true")...))
		if got.code != 125 || !strings.Contains(got.stderr, x.want) || strings.Contains(got.stderr, "secret") {
			t.Errorf("%s: %+v, want %q", x.flags, got, x.want)
		}
	}
}

// The rule of a user gives the upstream proxy of the user's sandboxes. The user can choose none.
func TestTheRuleOfAUserHasTheUpstreamProxy(t *testing.T) {
	const uid, other = 4242, 4243
	need(t, world(), peers())
	w := newOfficeWorld(t)
	rules := filepath.Join(t.TempDir(), "rules.json")
	writeFile(t, rules, fmt.Sprintf(`{"peers":[{"user":%d,"networks":["proxied"],"network_allow":["%s"],"upstream_proxy":"env"},
		{"user":%d,"networks":["proxied"],"network_allow":["%[2]s"]}]}`, uid, serverName, other))
	if err := os.Chmod(rules, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := socketOfTest(t)
	if err := os.Chmod(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := netnstest.Command(w.command("launcher", "--socket", socket, "--mode", "0666", "--rules", rules), w.host)
	cmd.Env = append(os.Environ(), "HTTP_PROXY="+squidURL, "HTTPS_PROXY="+squidURL)
	l := &launcherProcess{start(t, cmd), socket}
	t.Cleanup(l.leave)
	eventually(t, "the launcher listens", func() bool { return strings.Contains(l.stderr(), "listening") })
	allow := []string{serverName}
	as(t, uid, func(ctx context.Context) error {
		return w.userReaches(ctx, t, socket, sandbox.Config{Storage: sandbox.StorageMemory, Allow: allow})
	})
	for _, user := range []int{uid, other} {
		as(t, user, func(ctx context.Context) error {
			m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
			if err != nil {
				return err
			}
			defer m.Close()
			for _, proxy := range []string{"http://127.0.0.1:22", squidURL, "env"} {
				config := sandbox.Config{Storage: sandbox.StorageMemory, Allow: allow, UpstreamProxy: proxy}
				if _, err := m.Create(ctx, config); !errors.Is(err, fault.ErrRefused) || strings.Contains(err.Error(), "pass") {
					t.Errorf("user %d, %s: %v", user, proxy, err)
				}
			}
			return nil
		})
	}
}

// userReaches makes a sandbox, and holds that it reaches the server, and that no change takes the upstream proxy of the
// rule away.
func (w *officeWorld) userReaches(ctx context.Context, t *testing.T, socket string, config sandbox.Config) (err error) {
	m, err := sandbox.NewManager(sandbox.ManagerConfig{Socket: socket})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	box, err := m.Create(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	for range 2 {
		if r, err := box.Exec(ctx, sandbox.Command{Args: curlOf("http")}); err != nil || string(r.Stdout) != "hello\n" {
			t.Errorf("%+v, %v", r, err)
		}
		info, err := box.Info(ctx)
		if err != nil || info.Config.UpstreamProxy != sandbox.UpstreamEnv {
			t.Errorf("%+v, %v", info.Config, err)
		}
		grant := sandbox.NetworkGrant{Network: sandbox.NetworkProxied, Allow: config.Allow}
		if _, err := box.SetNetwork(ctx, grant); err != nil {
			t.Error(err)
		}
		grant.UpstreamProxy = squidURL
		if _, err := box.SetNetwork(ctx, grant); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("another upstream proxy: %v", err)
		}
	}
	return nil
}
