package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// slowDownload reads an answer without an end. When the connection fails, it writes the error beside the
// download, and goes on.
func slowDownload(host, name string) string {
	return fmt.Sprintf(`exec 3<>/dev/tcp/%[1]s/80 && printf 'GET /slow HTTP/1.1\r\nHost: %[1]s\r\n\r\n' >&3
cat <&3 >%[2]s.data 2>%[2]s.new; mv %[2]s.new %[2]s.failed; sleep 1000`, host, name)
}

// downloads starts a slow download in box, and waits for its first bytes.
func (w *farWorld) downloads(t *testing.T, host, name string) {
	t.Helper()
	w.says(t, "exec", "--detach", "box", "bash", "-c", slowDownload(host, name))
	eventually(t, name+" has begun", func() bool { return w.on(t, "exec", "box", "grep", "-q", "the beginning", name+".data").code == 0 })
}

// hasFailed waits for the end of a download, and returns the error. The process and its files stay.
func (w *farWorld) hasFailed(t *testing.T, name string) string {
	t.Helper()
	eventually(t, name+" has failed", func() bool { return w.on(t, "exec", "box", "test", "-e", name+".failed").code == 0 })
	if left := w.says(t, "exec", "box", "sh", "-c", "grep -c beginning "+name+".data; pgrep -c sleep >/dev/null && echo goes on"); left != "1\ngoes on\n" {
		t.Errorf("%s has left %q", name, left)
	}
	return w.says(t, "exec", "box", "cat", name+".failed")
}

// Networks of the tests, as arguments of the command network.
var (
	toNone    = []string{"none"}
	toNear    = []string{"proxied", "--allow", nearName}
	toOutside = []string{"full"}
)

// Each of the three networks follows each other one on a sandbox that is up. A connection of the earlier
// network ends at once, the process and its files stay, and the host is as before.
func TestEachNetworkFollowsEachOther(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	before := netnstest.Shell(t, w.host, worldState)
	w.says(t, "up", "box")
	now := "none"
	// The way has each of the six changes.
	for i, to := range [][]string{toNear, toOutside, toNone, toOutside, toNear, toNone} {
		host, name := nearName, fmt.Sprintf("download-%d", i)
		if now == "full" {
			host = worldServer
		}
		if now != "none" {
			w.downloads(t, host, name)
		}
		got := w.change(t, append([]string{"box"}, to...)...)
		step := now + " to " + to[0]
		if got.From != sandbox.Network(now) || got.To != sandbox.Network(to[0]) || !strings.Contains(got.Message, "from "+step) {
			t.Errorf("%s: %+v", step, got)
		}
		if now == "none" {
			if got.ConnectionsCut != 0 {
				t.Errorf("%s: %+v", step, got)
			}
		} else if failure := w.hasFailed(t, name); got.ConnectionsCut != 1 || !strings.Contains(got.Message, "One open connection was ended") ||
			failure != "cat: -: Software caused connection abort\n" { // ECONNABORTED
			t.Errorf("%s: %+v, %s", step, got, failure)
		}
		now = to[0]
		if said := w.says(t, "network", "box"); !strings.HasPrefix(said, "network "+now) {
			t.Error(said)
		}
		switch now {
		case "none":
			w.isRefused(t, step, "http://"+nearName)
			w.isRefused(t, step, "http://"+worldServer)
		case "proxied":
			w.gets(t, step, "http://"+nearName, nearName+"\n")
			w.isRefused(t, step, "http://"+strangeName)
			w.isRefused(t, step, "http://"+worldServer)
		case "full":
			w.gets(t, step, "http://"+worldServer, worldServer+"\n")
			w.gets(t, step, "http://"+strangeServer, strangeServer+"\n")
		}
	}
	w.says(t, "down", "box")
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if seen := w.far.seen(); strings.Contains(fmt.Sprint(seen), strangeName) {
		t.Errorf("outside: %q", seen)
	}
}

// New rules end the connections that they forbid, and no others. Names keep their addresses also over a time
// without the network.
func TestProxiedRulesChangeWhileTheSandboxRuns(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	both := []string{"box", "proxied", "--allow", nearName, "--allow", sisterName + ":80-8080"}
	w.says(t, append([]string{"up", "--network"}, append(both[1:], "box")...)...)
	address := func(name string) string { return w.says(t, "exec", "box", "getent", "ahostsv4", name) }
	near, sister := address(nearName), address(sisterName)
	w.downloads(t, nearName, "near")
	w.downloads(t, sisterName, "sister")
	got := w.change(t, "box", "proxied", "--allow", nearName, "--allow", sisterName+":8080")
	if got.ConnectionsCut != 1 || got.From != "proxied" || got.To != "proxied" || !strings.Contains(got.Message, "still proxied, with other rules. One open connection") {
		t.Errorf("other ports: %+v", got)
	}
	if failure := w.hasFailed(t, "sister"); !strings.Contains(failure, "Connection reset by peer") && !strings.Contains(failure, "connection abort") {
		t.Errorf("a connection to a port that is not allowed any more: %q", failure)
	}
	w.isRefused(t, "a port that is not allowed any more", "http://"+sisterName)
	w.gets(t, "the other port", "http://"+sisterName+":8080", sisterName+":8080\n")
	if got := w.change(t, append(both, "--deny", strangeName)...); got.ConnectionsCut != 0 {
		t.Errorf("wider rules: %+v", got)
	}
	if got := w.change(t, append(both, "--deny", nearName)...); got.ConnectionsCut != 1 {
		t.Errorf("a denied name: %+v", got)
	}
	if failure := w.hasFailed(t, "near"); !strings.Contains(failure, "Connection reset by peer") {
		t.Errorf("a connection to a denied name: %q", failure)
	}
	w.isRefused(t, "a denied name", "http://"+nearName)
	w.gets(t, "the other name", "http://"+sisterName, sisterName+"\n")
	w.change(t, "box", "none")
	if got := w.on(t, "exec", "box", "getent", "ahostsv4", sisterName); got.code == 0 {
		t.Errorf("none has names: %+v", got)
	}
	w.change(t, "box", "full")
	w.change(t, "box", "proxied", "--allow", sisterName, "--allow", nearName)
	if a := address(sisterName); a != sister {
		t.Errorf("%s had the address %s, and has %s", sisterName, sister, a)
	}
	if a := address(nearName); a != near {
		t.Errorf("%s had the address %s, and has %s", nearName, near, a)
	}
	for _, bad := range [][]string{{"proxied", "--allow", "a b"}, {"none", "--allow", nearName}, {"full", "--allow", nearName}} {
		if got := w.on(t, append([]string{"network", "box"}, bad...)...); got.code == 0 || got.stdout != "" {
			t.Errorf("%q: %+v", bad, got)
		}
	}
	w.gets(t, "after refused changes", "http://"+nearName, nearName+"\n")
	w.says(t, "down", "box")
}

// An embedder's sandbox has the changes of other programs.
func TestAHandleSeesChangesOfTheNetwork(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	c := newClientBy(w.sandboxes, func(cmd *exec.Cmd) *exec.Cmd { return netnstest.Command(cmd, w.host) })
	box, err := c.Create(t.Context(), sandbox.Config{Storage: sandbox.StorageMemory, Allow: []string{nearName}}, sandbox.Named("box"))
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(when, host string, want bool) {
		t.Helper()
		r, err := box.Exec(t.Context(), sandbox.Command{Args: []string{"curl", "--noproxy", "*", "-sS", "--fail", "--max-time", "20", "http://" + host}})
		if err != nil || r.OK() != want {
			t.Errorf("%s: %+v, %v", when, r, err)
		}
	}
	fetch("proxied", nearName, true)
	fetch("another name", sisterName, false)
	w.says(t, "network", "box", "proxied", "--allow", sisterName)
	fetch("other rules", nearName, false)
	fetch("other rules", sisterName, true)
	w.says(t, "network", "box", "none")
	fetch("none", sisterName, false)
	if got, err := box.SetNetwork(t.Context(), sandbox.NetworkGrant{Network: sandbox.NetworkProxied, Allow: []string{nearName}}); err != nil || got.From != "none" {
		t.Errorf("%+v, %v", got, err)
	}
	fetch("by the handle", nearName, true)
	w.says(t, "network", "--sensitivity", "confidential", "box")
	fetch("confidential", nearName, true)
	info, err := box.Info(t.Context())
	if err != nil || info.Config.Network != sandbox.NetworkProxied || info.Config.Sensitivity != "confidential" {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := box.SetNetwork(t.Context(), sandbox.NetworkGrant{Network: sandbox.NetworkFull}); err == nil {
		t.Error("confidential has full")
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	c.end()
}
