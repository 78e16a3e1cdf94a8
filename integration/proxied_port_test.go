package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// taker takes the port of names as soon as no other socket has the port.
const taker = `import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        s.bind(("0.0.0.0", 53))
        break
    except OSError:
        time.sleep(0.01)
open("/workspace/taken", "w")
time.sleep(1000)`

// A program inside that takes the port of names while both processes are gone leaves its sandbox without a network.
// The program does not stop the commands of the owner, or prune.
func TestASandboxTakesThePortOfNames(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	w := newFarWorld(t)
	for _, next := range [][]string{{"exec", "box", "true"}, {"prune"}, {"network", "box", "none"}} {
		dir := workspaceOfTest(t)
		w.says(t, "up", "--workspace", dir, "--allow", nearName, "box")
		w.says(t, "exec", "--detach", "box", "python3", "-c", taker)
		w.killOne(t, parentOfEgress)
		eventually(t, "the port is taken", func() bool { return exists(filepath.Join(dir, "taken")) })
		w.says(t, next...)
		if now := w.change(t, "box"); now.To != "none" {
			t.Errorf("%q: %+v", next, now)
		}
		if got := w.says(t, "inspect", "box"); !strings.Contains(got, "the sandbox has no network: serve the sandbox again: ") {
			t.Errorf("%q: there is no note: %s", next, got)
		}
		w.isRefused(t, "none", "http://"+nearName)
		if got := w.on(t, "network", "box", "proxied", "--allow", nearName); got.code == 0 || !strings.Contains(got.stderr, "end the program inside that uses port 53") {
			t.Errorf("the port is taken: %+v", got)
		}
		w.says(t, "exec", "box", "pkill", "python3")
		w.change(t, "box", "proxied", "--allow", nearName)
		w.gets(t, "the port is free", "http://"+nearName, nearName+"\n")
		w.says(t, "down", "box")
	}
}
