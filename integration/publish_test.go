package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// helloServer says hello at the sandbox's own 127.0.0.1.
const helloServer = `
import socket
s = socket.create_server(("127.0.0.1", 8000))
while True:
    c, _ = s.accept()
    c.sendall(b"hello\n")
    c.close()`

// serveHello starts the server in box.
func (w *networkWorld) serveHello(t *testing.T) {
	t.Helper()
	w.says(t, "exec", "--detach", "box", "python3", "-c", helloServer)
	eventually(t, "the server listens", func() bool {
		return w.on(t, "exec", "box", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000").code == 0
	})
}

// saysHello holds that a port of the host leads to the server of box, or that the port is closed.
func (w *networkWorld) saysHello(t *testing.T, when, port string, isOpen bool) {
	t.Helper()
	got := w.word(t, "127.0.0.1", port)
	if isOpen && got.stdout != "hello\n" || !isOpen && !strings.Contains(got.stderr, "Connection refused") {
		t.Errorf("%s: port %s: %+v", when, port, got)
	}
}

// leavesNoPublisher holds that the state root has no remains.
func (w *networkWorld) leavesNoPublisher(t *testing.T, when string) {
	t.Helper()
	if entries, err := os.ReadDir(filepath.Join(w.root, "@network")); err != nil || len(entries) > 0 {
		t.Errorf("%s: left: %v, %v", when, entries, err)
	}
}

// A port of the host leads to a server in a sandbox that reaches nothing outside, or only names. The port closes with
// the sandbox, also with one whose first process was killed.
func TestPortsArePublishedWithoutTheInternet(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.serve(t, w.outside, worldServer+":7")
	before := netnstest.Shell(t, w.host, worldState)
	for name, flags := range map[string][]string{"none": nil, "proxied": {"--allow", serverName}} {
		t.Run(name, func(t *testing.T) {
			flags := append(append([]string{"up", "--publish", "8080:8000"}, flags...), "box")
			for _, end := range []string{"down", "kill"} {
				w.says(t, flags...)
				w.serveHello(t)
				w.saysHello(t, "up", "8080", true)
				if got := w.on(t, "exec", "box", "bash", "-c", "exec 3<>/dev/tcp/"+worldServer+"/7"); got.code == 0 {
					t.Errorf("the sandbox reaches the internet: %+v", got)
				}
				if end == "kill" {
					kill(t, w.pid("box"), unix.SIGKILL)
					eventually(t, "the port is closed", func() bool { return w.word(t, "127.0.0.1", "8080").code != 0 })
					w.says(t, "prune")
				}
				w.on(t, "down", "box")
				w.saysHello(t, "after "+end, "8080", false)
				w.leavesNoPublisher(t, "after "+end)
			}
		})
	}
	if got := w.on(t, "do", "--publish", "8081:80", "--", "true"); got.code != 0 {
		t.Errorf("do: %+v", got)
	}
	w.saysHello(t, "after do", "8081", false)
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("the host has changed from\n%s\nto\n%s", before, after)
	}
}

// A change of the network keeps the ports that it names, and closes all others.
func TestPublishedPortsChangeWithTheNetwork(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	w.says(t, "up", "box")
	w.serveHello(t)
	for _, c := range []struct {
		change []string
		open   string // the published port
	}{
		{[]string{"none", "--publish", "8080:8000"}, "8080"},
		{[]string{"full", "--publish", "8080:8000"}, "8080"},
		{[]string{"proxied", "--allow", serverName, "--publish", "8081:8000"}, "8081"},
		{[]string{"none", "--publish", "8081:8000"}, "8081"},
		{[]string{"none"}, ""},
		{[]string{"full", "--publish", "8080:8000"}, "8080"},
		{[]string{"none"}, ""},
		{[]string{"proxied", "--allow", serverName, "--publish", "8080:8000"}, "8080"},
		{[]string{"proxied", "--allow", serverName}, ""},
		{[]string{"none", "--publish", "8081:8000"}, "8081"},
	} {
		w.change(t, append([]string{"box"}, c.change...)...)
		for _, port := range []string{"8080", "8081"} {
			w.saysHello(t, strings.Join(c.change, " "), port, port == c.open)
		}
	}
	if got := w.says(t, "network", "--sensitivity", "secret", "box"); !strings.Contains(got, "without published ports") {
		t.Errorf("the message of a higher level: %q", got)
	}
	w.saysHello(t, "secret", "8081", false)
	if got := w.on(t, "network", "box", "none", "--publish", "8080:8000"); got.code == 0 || !strings.Contains(got.stderr, "--publish: needs a level") {
		t.Errorf("ports of a secret sandbox: %+v", got)
	}
	w.says(t, "down", "box")
	w.leavesNoPublisher(t, "down")
}
