package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// downloader reads from a server without an end. When the connection fails, it writes the error
// beside the download, and goes on.
const downloader = `exec 3<>/dev/tcp/` + worldServer + `/81; touch begun
cat <&3 >download 2>failed.new; mv failed.new failed
sleep 1000`

// trickle sends a word at the address now and then, without an end.
func (w *networkWorld) trickle(t *testing.T, address string) {
	t.Helper()
	l := netnstest.Listen(t, w.outside, address)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("the beginning"))
		_, _ = c.Read(make([]byte, 1)) // until the other end has gone
	}()
}

// says runs the runtime on the world's host, which must succeed, and returns what it has printed.
func (w *networkWorld) says(t *testing.T, args ...string) string {
	t.Helper()
	got := w.on(t, args...)
	if got.code != 0 {
		t.Fatalf("%q: %+v", args, got)
	}
	return got.stdout
}

// change is the change of a network that the command tells.
func (w *networkWorld) change(t *testing.T, args ...string) (c sandbox.NetworkChange) {
	t.Helper()
	out := w.says(t, append([]string{"network", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return c
}

// reaches holds that box reaches the server, or not. It learns of a refusal at once.
func (w *networkWorld) reaches(t *testing.T, when string, want bool) {
	t.Helper()
	got := w.on(t, append([]string{"exec", "box"}, hello(worldServer, "80")...)...)
	if (got.stdout == "hello\n") != want || strings.Contains(got.stderr, "timed out") {
		t.Errorf("%s: %+v", when, got)
	}
}

// A download that waits for more ends at once when its sandbox loses the network. The process and
// its files stay.
func TestANetworkChangesWhileTheSandboxRuns(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	w.trickle(t, worldServer+":81")
	before := netnstest.Shell(t, w.host, worldState)
	w.says(t, "up", "box")
	w.reaches(t, "none", false)
	if got := w.change(t, "box", "full"); got.From != "none" || got.To != "full" || got.ConnectionsCut != 0 {
		t.Errorf("to full: %+v", got)
	}
	w.reaches(t, "full", true)
	w.says(t, "exec", "--detach", "box", "bash", "-c", downloader)
	eventually(t, "the download has begun", func() bool { return w.on(t, "exec", "box", "test", "-e", "begun").code == 0 })

	got := w.change(t, "box", "none")
	if got.From != "full" || got.To != "none" || got.ConnectionsCut != 1 || !strings.Contains(got.Message, "from full to none") {
		t.Errorf("to none: %+v", got)
	}
	eventually(t, "the download has failed", func() bool { return w.on(t, "exec", "box", "test", "-e", "failed").code == 0 })
	const aborted = "cat: -: Software caused connection abort\n" // ECONNABORTED
	if files := w.says(t, "exec", "box", "sh", "-c", "cat failed download; pgrep -c sleep"); files != aborted+"the beginning1\n" {
		t.Errorf("in the sandbox there are %q", files)
	}
	w.reaches(t, "none again", false)
	if now := w.says(t, "network", "box"); !strings.HasPrefix(now, "network none") {
		t.Error(now)
	}
	w.change(t, "box", "full")
	w.reaches(t, "full again", true)
	w.says(t, "down", "box")
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// worldState prints all that sandboxes change on a host.
const worldState = "ip -o link; ip rule; nft list ruleset; cat /proc/sys/net/ipv4/conf/*/forwarding"

// Published ports are a part of the network: they close with it, and a change replaces them.
func TestPublishedPortsChangeWhileTheSandboxRuns(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	ports := func(when, want string) {
		t.Helper()
		if got := netnstest.Shell(t, w.host, "ss -Hltn | sed 's/.*127.0.0.1:\\([0-9]*\\).*/\\1/'"); got != want {
			t.Errorf("%s: the host listens on %q, want %q", when, got, want)
		}
	}
	w.says(t, "up", "--network", "full", "--publish", "8080:80", "box")
	ports("full", "8080")
	w.change(t, "box", "none")
	ports("none", "")
	w.change(t, "box", "full", "--publish", "8081:80")
	ports("full again", "8081")
	w.change(t, "box", "full", "--publish", "8082:80")
	ports("another port", "8082")
	taken := netnstest.Listen(t, w.host, "127.0.0.1:8083")
	got := w.on(t, "network", "box", "full", "--publish", "8083:80")
	if got.code != 1 || !strings.Contains(got.stderr, "--publish 127.0.0.1:8083:80: ") || !strings.HasSuffix(got.stderr, "; the sandbox has no network now\n") {
		t.Errorf("a taken port: %+v", got)
	}
	taken.Close()
	ports("after a taken port", "")
	w.change(t, "box", "full", "--publish", "8083:80")
	ports("the port is free", "8083")
	w.change(t, "--sensitivity", "secret", "box")
	ports("secret", "")
	w.says(t, "down", "box")
}

// A rule for the address of another sandbox ends with the connection of that sandbox. The same rule can
// be made again.
func TestARuleNamesAnotherSandbox(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.says(t, "up", "--network", "full", "server")
	var info struct {
		NetworkAddresses []string `json:"network_addresses"`
	}
	decode(t, w.says(t, "inspect", "server"), &info)
	address := info.NetworkAddresses[0]
	server := "import socket\ns = socket.create_server(('', 8000))\nwhile True:\n c, _ = s.accept()\n c.sendall(b'hello\\n')\n c.close()"
	w.says(t, "exec", "--detach", "server", "python3", "-c", server)
	w.says(t, "up", "--network", "full", "--allow", address+":8000", "box")
	try := func() result { return w.on(t, append([]string{"exec", "box"}, hello(address, "8000")...)...) }
	eventually(t, "the server answers", func() bool { return try().stdout == "hello\n" })
	w.says(t, "network", "server", "none")
	w.says(t, "network", "server", "full")
	if got := try(); got.stdout != "" || strings.Contains(got.stderr, "timed out") {
		t.Errorf("after a cut: %+v", got)
	}
	w.says(t, "network", "box", "full", "--allow", address+":8000")
	if got := try(); got.stdout != "hello\n" {
		t.Errorf("the same rule again: %+v", got)
	}
	w.says(t, "down", "server", "box")
}

func TestRulesChangeWhileTheSandboxRuns(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	w.says(t, "up", "--network", "full", "box")
	w.change(t, "box", "full", "--deny", worldServer+":80")
	w.reaches(t, "denied", false)
	w.change(t, "box", "full", "--deny", worldServer+":81")
	w.reaches(t, "another port is denied", true)
	for _, bad := range [][]string{
		{"box", "wide"}, {"box", "none", "--allow", "10.0.0.1"}, {"box", "--allow", "10.0.0.1"}, {"box", "full", "--allow", "10.0.0"},
		{"--sensitivity", "low", "box"}, {"box", "full", "more"}, {}, {"nobox", "none"},
	} {
		if got := w.on(t, append([]string{"network"}, bad...)...); got.code == 0 || got.stdout != "" || strings.Count(got.stderr, "\n") > 3 {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	w.reaches(t, "after refused changes", true)
	w.says(t, "down", "box")
}

// A level rises and never falls, whatever happens to the sandbox, until its owner removes it.
func TestSensitivityOnlyRises(t *testing.T) {
	need(t, world(), layersOfAnywhere(t))
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	refused := func(when string) {
		t.Helper()
		w.reaches(t, when, false)
		if got := w.on(t, "network", "box", "full"); got.code == 0 || !strings.Contains(got.stderr, "secret") {
			t.Errorf("%s: %+v", when, got)
		}
		w.reaches(t, when+", after a try", false)
	}
	w.says(t, "up", "--network", "full", "--overlay", newHome(t), "box")
	if got := w.change(t, "--sensitivity", "internal", "box"); got.To != "full" || !got.Raised {
		t.Errorf("internal: %+v", got)
	}
	w.reaches(t, "internal", true)
	got := w.change(t, "--sensitivity", "secret", "box")
	if got.From != "full" || got.To != "none" || got.Sensitivity != "secret" || !strings.Contains(got.Message, "because secret data entered") {
		t.Errorf("secret: %+v", got)
	}
	refused("secret")
	if got := w.change(t, "--sensitivity", "public", "box"); got.Raised || got.Sensitivity != "secret" || got.To != "none" {
		t.Errorf("public: %+v", got)
	}
	refused("after a lower level")

	w.says(t, "snapshot", "box", "snap")
	if got := w.on(t, "up", "--network", "full", "--from", "snap", "fork"); got.code != 0 || !strings.Contains(got.stderr, "secret") {
		t.Errorf("fork: %+v", got)
	}
	if got := w.change(t, "fork"); got.To != "none" || got.Sensitivity != "secret" {
		t.Errorf("a fork: %+v", got)
	}
	w.says(t, "down", "fork")

	w.killInit("box")
	w.says(t, "up", "--network", "full", "box")
	refused("after a crash")
	w.killInit("box")
	w.says(t, "snapshot", "--remove", "snap")
	w.says(t, "prune")
	w.says(t, "up", "--network", "full", "box")
	refused("after a crash and prune")
	w.says(t, "down", "box")
	w.says(t, "up", "--network", "full", "box")
	w.reaches(t, "after down", true)
	w.says(t, "down", "box")
	if got := w.on(t, "up", "--network", "full", "--sensitivity", "secret", "box"); got.code == 0 || !strings.Contains(got.stderr, "permits at most") {
		t.Errorf("a contradiction: %+v", got)
	}
}

// Killed at any moment, a change to a stricter network is whole for the next command, or was not
// begun, also in a launcher that has the sandbox open. Prune and up finish the change, too. A level
// that was on disk stays.
func TestNetworkChangeKilledAtFailpoints(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	before := netnstest.Shell(t, w.host, worldState)
	open, next := w.launcher(socketOfTest(t)).client(), 0
	for _, args := range [][]string{{"network", "box", "none"}, {"network", "--sensitivity", "secret", "box"}, {"network", "box", "full", "--deny", worldServer}} {
		strike := func(n int) failpoint.Trace {
			t.Helper()
			w.says(t, "up", "--network", "full", "box")
			sleeps(t, open, "box", false)
			trace, err := failpoint.Run(netnstest.Command(w.command(args...), w.host), n, patience)
			if err != nil {
				t.Fatal(err)
			}
			return trace
		}
		points := len(strike(0).Points)
		w.reaches(t, "not killed", false)
		w.says(t, "down", "box")
		kills, done := 0, 0
		for _, n := range someFailpoints(points, 32) {
			trace := strike(n)
			if trace.Killed {
				kills++
			}
			at := fmt.Sprintf("%v: killed at %d, %v", args, n, trace.Points[len(trace.Points)-1])
			isOnDisk := len(w.ratchets()) > 0
			next++
			w.finish(t, at, open, next)
			var now sandbox.NetworkChange
			if now = w.change(t, "box"); isOnDisk && now.Sensitivity != "secret" {
				t.Errorf("%s: %+v", at, now)
			}
			got := w.on(t, append([]string{"exec", "box"}, hello(worldServer, "80")...)...)
			switch isChanged := now.To == "none" || strings.Contains(w.says(t, "inspect", "box"), `"deny"`); {
			case isChanged && got.code == 0:
				t.Errorf("%s: the network is %+v, and the server answers", at, now)
			case !isChanged && got.code != 0:
				t.Errorf("%s: nothing has changed, and the server is out of reach: %+v", at, got)
			case isChanged:
				done++
			}
			w.says(t, "down", "box")
		}
		t.Logf("%v: %d failpoints, %d kills, %d times it was changed", args, points, kills, done)
		if kills == 0 {
			t.Errorf("%v: never killed", args)
		}
	}
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// launcher has a launcher listen on the world's host.
func (w *networkWorld) launcher(socket string) *launcherProcess {
	w.t.Helper()
	p := &launcherProcess{start(w.t, netnstest.Command(w.command("launcher", "--socket", socket), w.host)), socket}
	eventually(w.t, "the launcher listens", func() bool { return strings.Contains(p.stderr(), "listening") })
	return p
}

// finish has one of several programs finish the work of a killed command.
func (w *networkWorld) finish(t *testing.T, at string, open *protocol.Client, n int) {
	t.Helper()
	by := []string{"an open handle", "prune", "up"}[n%3]
	pid := w.pid("box")
	switch by {
	case "an open handle":
		_ = output(t, open, "box", "true")
	case "prune":
		w.says(t, "prune")
	case "up":
		w.says(t, "up", "--network", "full", "box")
	}
	if w.pid("box") != pid {
		t.Errorf("%s: %s has replaced the sandbox", at, by)
	}
	text, err := os.ReadFile(filepath.Join(w.root, "@sandboxes", "box", "sandbox.json"))
	if err != nil || strings.Contains(string(text), `"rewiring"`) {
		t.Errorf("%s: %s did not finish the change, %v", at, by, err)
	}
}

// Of many clients at once some widen the network, and one raises the level. No client gets the
// network back after that.
func TestManyClientsNeverLoosenTheLevel(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":80")
	before := netnstest.Shell(t, w.host, worldState)
	w.says(t, "up", "box")
	const clients = 50
	var all sync.WaitGroup
	var changed atomic.Int32
	for i := range clients {
		all.Go(func() {
			args := []string{"network", "box", "full"}
			switch {
			case i == clients/2:
				args = []string{"network", "--sensitivity", "secret", "box"}
			case i%3 == 0:
				args = []string{"network", "box", "none"}
			}
			got := w.on(t, args...)
			widens := args[len(args)-1] == "full"
			switch {
			case got.code == 0:
				changed.Add(1)
			case !widens || !strings.Contains(got.stderr, "permits at most"):
				t.Errorf("%q: %+v", args, got)
			}
		})
	}
	all.Wait()
	t.Logf("%d of %d changes", changed.Load(), clients)
	if now := w.change(t, "box"); now.To != "none" || now.Sensitivity != "secret" {
		t.Errorf("at the end: %+v", now)
	}
	w.reaches(t, "at the end", false)
	w.says(t, "down", "box")
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
