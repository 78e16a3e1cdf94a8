package integration

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// untilTheEnd is a command that reads from a server until the end of the connection.
func untilTheEnd(address, port string) []string {
	return []string{"--", "python3", "-c", "import socket\nc = socket.create_connection(('" + address + "', " + port + "), 5)\nn = 0\nwhile b := c.recv(65536): n += len(b)\nprint(n)"}
}

// A Result and stats have the bytes of the network, and a violation names a used quota. A command
// without use of the network has no violation. The quota stays used when the network changes.
func TestTheQuotaOfTheNetworkIsReported(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	l := netnstest.Listen(t, w.outside, worldServer+":80")
	const size = 1 << 20
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				_, _ = io.Copy(c, strings.NewReader(strings.Repeat("x", size)))
				c.Close()
			}()
		}
	}()
	type report struct {
		outcome
		Received int64 `json:"network_received_bytes"`
		Sent     int64 `json:"network_sent_bytes"`
		Charged  int64 `json:"network_charged_bytes"`
	}
	on := func(args ...string) (r report) {
		decode(t, w.on(t, args...).stdout, &r)
		return r
	}
	within := on(append([]string{"do", "--json", "--network", "full", "--network-quota", "2m", "--network-rate", "100m"}, untilTheEnd(worldServer, "80")...)...)
	if within.Stdout != "1048576\n" || len(within.Violations) != 0 || within.Received < size || within.Received > 2*size || within.Sent < 1000 || within.Sent > size {
		t.Errorf("within the quota: %+v", within)
	}
	if got := w.on(t, "up", "--network", "full", "--network-quota", "512k", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	beyond := on(append([]string{"exec", "--json", "box"}, untilTheEnd(worldServer, "80")...)...)
	if beyond.Status != "exited" || beyond.ExitCode != 1 || len(beyond.Violations) != 1 || beyond.Violations[0].Kind != "limit" ||
		!strings.Contains(beyond.Violations[0].Detail, "512k used up") || !strings.Contains(beyond.Violations[0].Detail, "--network-quota") ||
		!strings.Contains(beyond.Reason, "--network-quota") || !strings.Contains(beyond.Stderr, "Connection reset") {
		t.Errorf("beyond the quota: %+v", beyond)
	}
	var idle report
	for range 20 { // the last packets of the server can come later
		if idle = on("exec", "--json", "box", "--", "true"); len(idle.Violations) == 0 && idle.Received == 0 && idle.Sent == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if len(idle.Violations) != 0 || idle.Received != 0 || idle.Sent != 0 {
		t.Errorf("without use: %+v", idle)
	}
	use := on("stats", "--json", "box")
	if use.Charged != 512<<10 || use.Received < beyond.Received || use.Sent < beyond.Sent {
		t.Errorf("stats: %+v; the command: %+v", use, beyond)
	}
	if table := w.on(t, "stats", "box").stdout; !strings.Contains(table, "RECEIVED   SENT") || strings.HasSuffix(table, " 0B\n") {
		t.Errorf("stats:\n%s", table)
	}
	for _, args := range [][]string{{"network", "box", "none"}, {"network", "box", "full"}} {
		if got := w.on(t, args...); got.code != 0 {
			t.Fatalf("%q: %+v", args, got)
		}
	}
	again := on(append([]string{"exec", "--json", "box"}, untilTheEnd(worldServer, "80")...)...)
	if again.ExitCode != 1 || len(again.Violations) != 1 || !strings.Contains(again.Stderr, "Connection refused") {
		t.Errorf("after a change of the network: %+v", again)
	}
	for _, args := range [][]string{{"network", "box", "none"}, {"down", "box"}} {
		if got := w.on(t, args...); got.code != 0 {
			t.Fatalf("%q: %+v", args, got)
		}
	}
	if left, err := filepath.Glob(filepath.Join(w.root, "@network", "traffic-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}
