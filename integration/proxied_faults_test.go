package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// killOne kills the one process of a kind of the proxied network, and waits for its end.
func (w *farWorld) killOne(t *testing.T, kind string) process.ID {
	t.Helper()
	var all []process.ID
	eventually(t, "one process "+kind, func() bool { all = w.egressProcesses(t, kind); return len(all) == 1 })
	kill(t, all[0].Pid, unix.SIGKILL)
	eventually(t, "the end of the process "+kind, func() bool { return !all[0].Lives() })
	return all[0]
}

// asks has box ask for each name without an end. The workspace has a line for each answer and each failure.
func (w *farWorld) asks(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		w.says(t, "exec", "--detach", "box", "bash", "-c", fmt.Sprintf(
			"while sleep 0.05; do if curl --noproxy '*' -sS --fail --max-time 20 http://%[1]s >/dev/null 2>&1; then echo >>%[1]s.answers; else echo >>%[1]s.failures; fi; done", name))
	}
}

// lines is the number of lines of a file.
func lines(path string) int {
	text, _ := os.ReadFile(path) // without the file there are none
	return strings.Count(string(text), "\n")
}

// grows waits for some more lines of a file.
func grows(t *testing.T, path string) {
	t.Helper()
	before := lines(path)
	eventually(t, filepath.Base(path)+" grows", func() bool { return lines(path) > before+3 })
}

// hasSeenOnly holds that requests to no other hosts have arrived outside.
func (w *farWorld) hasSeenOnly(t *testing.T, want ...string) {
	t.Helper()
	if seen := w.far.seen(); strings.Join(seen, ", ") != strings.Join(want, ", ") {
		t.Errorf("outside: %q, want %q", seen, want)
	}
}

// workspaceOfTest makes a directory for a sandbox.
func workspaceOfTest(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The worker is killed again and again while programs ask for allowed names and for others. Service is back each
// time with the same addresses, and nothing else arrives outside.
func TestTheWorkerIsKilledWhileSandboxesAsk(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	w := newFarWorld(t)
	dir := workspaceOfTest(t)
	w.says(t, "up", "--workspace", dir, "--allow", nearName, "--allow", sisterName+":8080", "box")
	w.asks(t, nearName, sisterName, strangeName)
	address := w.says(t, "exec", "box", "getent", "ahostsv4", nearName)
	rounds := 25
	if os.Getenv(failpointsVariable) == "all" {
		rounds = 100
	}
	for range rounds {
		grows(t, filepath.Join(dir, nearName+".answers"))
		w.killOne(t, workerOfEgress)
	}
	grows(t, filepath.Join(dir, nearName+".answers"))
	for _, name := range []string{sisterName, strangeName} {
		grows(t, filepath.Join(dir, name+".failures"))
		if n := lines(filepath.Join(dir, name+".answers")); name == strangeName && n != 0 {
			t.Errorf("%s has answered %d times", name, n)
		}
	}
	if again := w.says(t, "exec", "box", "getent", "ahostsv4", nearName); again != address {
		t.Errorf("%s had the address %s, and has %s", nearName, address, again)
	}
	w.hasSeenOnly(t, nearName+" at "+worldServer+":80")
	if use := w.use(t); use.Requests < int64(rounds) || use.Refused == 0 {
		t.Errorf("stats: %+v", use)
	}
	w.says(t, "down", "box")
}

// Without the parent and its worker nothing passes. The next command for the sandbox, or prune, restores service.
func TestTheNextCommandRestoresTheProxiedNetwork(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	w := newFarWorld(t)
	dir := workspaceOfTest(t)
	w.says(t, "up", "--workspace", dir, "--allow", nearName, "box")
	w.asks(t, nearName, strangeName)
	answers, failures := filepath.Join(dir, nearName+".answers"), filepath.Join(dir, nearName+".failures")
	grows(t, answers)
	address := w.says(t, "exec", "box", "getent", "ahostsv4", nearName)
	for _, restore := range [][]string{{"exec", "box", "true"}, {"prune"}, {"up", "box"}, {"network", "box", "proxied", "--allow", nearName, "--deny", strangeName}} {
		w.killOne(t, parentOfEgress)
		eventually(t, "the end of the worker", func() bool { return len(w.egressProcesses(t, workerOfEgress)) == 0 })
		grows(t, failures)
		before := lines(answers)
		grows(t, failures)
		if n := lines(answers); n != before {
			t.Errorf("%d requests were answered without the two processes", n-before)
		}
		w.says(t, restore...)
		grows(t, answers)
		if again := w.says(t, "exec", "box", "getent", "ahostsv4", nearName); again != address {
			t.Errorf("%q: %s had the address %s, and has %s", restore, nearName, address, again)
		}
	}
	open := w.launcher(socketOfTest(t)).client()
	for range 20 { // the worker may still be there when the command comes
		kill(t, w.egressProcesses(t, parentOfEgress)[0].Pid, unix.SIGKILL)
		if got := output(t, open, "box", direct+nearName); got != nearName+"\n" {
			t.Errorf("at once after the kill: %q", got)
		}
	}
	w.hasSeenOnly(t, nearName+" at "+worldServer+":80")
	w.says(t, "down", "box")
}

// A sandbox whose parent was killed is removed whole, also by prune. The processes end by themselves after the
// last sandbox.
func TestRemovalsWithoutTheParent(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	before := netnstest.Shell(t, w.host, worldState)
	for _, remove := range []string{"down", "prune"} {
		w.says(t, "up", "--storage", "memory", "--allow", nearName, "box")
		w.gets(t, "before", "http://"+nearName, nearName+"\n")
		w.killOne(t, parentOfEgress)
		if remove == "prune" {
			kill(t, w.pid("box"), unix.SIGKILL)
			eventually(t, "prune removes the sandbox", func() bool { w.says(t, "prune"); return !exists(filepath.Join(w.root, "@sandboxes", "box")) })
		} else {
			w.says(t, "down", "box")
		}
		w.awaitEgressEnd(t)
		if left, err := filepath.Glob(filepath.Join(w.root, "@egress", "boxes", "*")); err != nil || len(left) != 0 {
			t.Errorf("%s has left %q, %v", remove, left, err)
		}
	}
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Killed at any moment, a change from or to the proxied network is whole for the next command, or was not begun.
// A program inside never reaches a name that neither rules allow.
func TestProxiedChangeKilledAtFailpoints(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	before := netnstest.Shell(t, w.host, worldState)
	open, next := w.launcher(socketOfTest(t)).client(), 0
	near, sister := []string{"--allow", nearName}, []string{"proxied", "--allow", sisterName}
	for _, s := range []struct{ from, change []string }{
		{near, sister}, {near, []string{"none"}}, {near, []string{"full"}},
		{[]string{"--network", "full"}, sister}, {nil, sister}, {[]string{"--network", "full"}, []string{"--sensitivity", "confidential"}},
	} {
		strike := func(n int) failpoint.Trace {
			t.Helper()
			w.says(t, append(append([]string{"up", "--storage", "memory"}, s.from...), "box")...)
			sleeps(t, open, "box", false)
			trace, err := failpoint.Run(netnstest.Command(w.command(append([]string{"network", "box"}, s.change...)...), w.host), n, patience)
			if err != nil {
				t.Fatal(err)
			}
			return trace
		}
		w.says(t, append(append([]string{"up", "--storage", "memory"}, s.from...), "box")...)
		begun := w.grant(t, "box")
		points := len(strike(0).Points)
		if w.grant(t, "box") == begun {
			t.Errorf("%v changes nothing", s)
		}
		w.says(t, "down", "box")
		kills, done := 0, 0
		for _, n := range someFailpoints(points, points/3) {
			trace := strike(n)
			if !trace.Killed { // the counted run has waited longer for a lock
				w.says(t, "down", "box")
				trace = strike(1 + rand.N(len(trace.Points)))
			}
			if trace.Killed {
				kills++
			}
			at := fmt.Sprintf("%v: killed at %d, %v", s, n, trace.Points[len(trace.Points)-1])
			isOnDisk := len(w.ratchets()) > 0
			next++
			w.finish(t, at, open, next)
			if w.hasNetworkOfRecord(t, at, isOnDisk) != begun {
				done++
			}
			w.says(t, "down", "box")
		}
		t.Logf("%v: %d failpoints, %d kills, %d times it was changed", s, points, kills, done)
		if kills == 0 {
			t.Errorf("%v: never killed", s)
		}
	}
	if after := netnstest.Shell(t, w.host, worldState); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// A recordedGrant is the network of a record.
type recordedGrant struct{ network, level, rules string }

func (w *farWorld) grant(t *testing.T, name string) recordedGrant {
	t.Helper()
	var info struct {
		Config struct {
			Network, Sensitivity string
			Allow                []string
		}
	}
	decode(t, w.says(t, "inspect", name), &info)
	return recordedGrant{info.Config.Network, info.Config.Sensitivity, strings.Join(info.Config.Allow, " ")}
}

// hasNetworkOfRecord holds that box has exactly the network of its record, and returns that.
func (w *farWorld) hasNetworkOfRecord(t *testing.T, at string, isRaised bool) recordedGrant {
	t.Helper()
	c := w.grant(t, "box")
	if isRaised && c.level != "confidential" {
		t.Errorf("%s: the level was on disk: %+v", at, c)
	}
	reachable := map[string]bool{"http://" + worldServer: c.network == "full"}
	for _, name := range []string{nearName, sisterName} {
		reachable["http://"+name] = c.network == "proxied" && strings.Contains(c.rules, name)
	}
	for url, want := range reachable {
		got := w.on(t, append([]string{"exec", "box"}, append(fetchBy(url), "--fail")...)...)
		if (got.code == 0) != want || got.code == 28 || got.code == 125 {
			t.Errorf("%s: the network is %+v, and %s: %+v", at, c, url, got)
		}
	}
	return c
}
