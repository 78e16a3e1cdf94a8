package integration

import (
	"slices"
	"strings"
	"testing"
)

// A networkReport is a Result with the use of the network.
type networkReport struct {
	outcome
	Received int64 `json:"network_received_bytes"`
	Sent     int64 `json:"network_sent_bytes"`
}

// report runs a command with --json on the world's host.
func (w *farWorld) report(t *testing.T, args ...string) (r networkReport) {
	t.Helper()
	decode(t, w.on(t, args...).stdout, &r)
	return r
}

// use is the use of the network by box, as stats tell.
func (w *farWorld) use(t *testing.T) (use struct {
	Received int64 `json:"network_received_bytes"`
	Charged  int64 `json:"network_charged_bytes"`
	Requests int64 `json:"network_requests"`
	Refused  int64 `json:"network_refused"`
}) {
	t.Helper()
	decode(t, w.says(t, "stats", "--json", "box"), &use)
	return use
}

// direct is curl without a proxy. It fails if the server refuses the request.
const direct = "curl --noproxy '*' -sS --fail --max-time 20 "

// A Result names each refusal of a command, with the flag that would help, however soon the command ends.
func TestRefusalsAreViolations(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	w.says(t, "up", "--allow", nearName, "--allow", sisterName+":8080", "box")
	for range 3 {
		for _, c := range []struct{ what, url, says, flag string }{
			{"a name", "http://" + strangeName, "Could not resolve host", "--allow " + strangeName},
			{"a port of another name", "http://" + nearName + ":8080", "403", "--allow " + nearName + ":8080"},
			{"an address", "http://" + worldServer, "403", "--allow " + worldServer},
		} {
			r := w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+c.url)
			for try := 0; try < 3 && strings.Contains(r.Stderr, "reset by peer"); try++ { // the client was slow to begin
				r = w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+c.url)
			}
			if r.Status != "exited" || r.ExitCode == 0 || r.ExitCode == 28 || !strings.Contains(r.Stderr, c.says) {
				t.Errorf("%s: %+v", c.what, r)
			}
			if !slices.ContainsFunc(r.Violations, func(v violation) bool { return v.Kind == "network" && strings.Contains(v.Detail, c.flag) }) ||
				!strings.Contains(r.Reason, c.flag) {
				t.Errorf("%s: the Result does not say %q: %+v", c.what, c.flag, r)
			}
		}
		r := w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+nearName+"/large | wc -c")
		if r.Stdout != "1048576\n" || len(r.Violations) != 0 || r.Received < 1<<20 || r.Received > 2<<20 || r.Sent < 50 || r.Sent > 10_000 {
			t.Errorf("an allowed request: %+v", r)
		}
	}
	if r := w.report(t, "exec", "--json", "box", "--", "true"); len(r.Violations) != 0 || r.Received != 0 || r.Sent != 0 {
		t.Errorf("without use: %+v", r)
	}
	w.says(t, "down", "box")
}

// Requests above a limit are refused, and the Result and stats tell that. A change of the network gives no new ones.
func TestRequestsAreLimited(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	w.says(t, "up", "--allow", nearName, "--network-requests", "2", "box")
	get := func() networkReport {
		t.Helper()
		return w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+nearName)
	}
	for range 2 {
		if r := get(); r.ExitCode != 0 || len(r.Violations) != 0 {
			t.Errorf("within the limit: %+v", r)
		}
	}
	isUsedUp := func(when string) {
		t.Helper()
		r := get()
		if r.ExitCode == 0 || !r.hit("limit", "2 network requests reached (raise it with --network-requests)") ||
			!r.hit("network", "used up its 2 requests") || !strings.Contains(r.Reason, "--network-requests") {
			t.Errorf("%s: %+v", when, r)
		}
	}
	isUsedUp("beyond the limit")
	if use := w.use(t); use.Requests != 2 || use.Refused != 1 {
		t.Errorf("stats: %+v", use)
	}
	w.change(t, "box", "none")
	w.change(t, "box", "proxied", "--allow", nearName)
	isUsedUp("after a time without the network")
	w.change(t, "box", "proxied", "--allow", nearName+":80")
	isUsedUp("with other rules")
	if got := w.on(t, "network", "box", "full"); got.code == 0 || !strings.Contains(got.stderr, "network_requests") {
		t.Errorf("full: %+v", got)
	}
	w.says(t, "down", "box")
	if seen := w.far.arrived[nearName+" at "+worldServer+":80"]; seen != 2 {
		t.Errorf("%d requests have arrived", seen)
	}
}

// A used quota ends open connections, and refuses new ones. The two networks with a quota count apart, so no
// sandbox gets both.
func TestTheQuotaOfTheProxiedNetwork(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	w.says(t, "up", "--allow", nearName, "--network-quota", "3m", "box")
	within := w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+nearName+"/large | wc -c")
	if within.Stdout != "1048576\n" || len(within.Violations) != 0 {
		t.Errorf("within the quota: %+v", within)
	}
	beyond := w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+nearName+"/endless >/dev/null")
	if beyond.ExitCode == 0 || beyond.ExitCode == 28 || !beyond.hit("limit", "quota of 3m used up") || !strings.Contains(beyond.Reason, "--network-quota") {
		t.Errorf("beyond the quota: %+v", beyond)
	}
	again := w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+nearName)
	if again.ExitCode == 0 || !again.hit("limit", "quota of 3m used up") || !again.hit("network", "used up its 3145728 bytes") {
		t.Errorf("the next connection: %+v", again)
	}
	if use := w.use(t); use.Charged < 3<<20 || use.Charged < use.Received || use.Refused != 1 {
		t.Errorf("stats: %+v", use)
	}
	cannotCount := func(when string, to ...string) {
		t.Helper()
		if got := w.on(t, append([]string{"network", "box"}, to...)...); got.code == 0 || !strings.Contains(got.stderr, "cannot count two networks") {
			t.Errorf("%s: %+v", when, got)
		}
	}
	cannotCount("from proxied", "full")
	w.change(t, "box", "none")
	cannotCount("from proxied over none", "full")
	w.change(t, "box", "proxied", "--allow", nearName)
	if r := w.report(t, "exec", "--json", "box", "--", "sh", "-c", direct+nearName); r.ExitCode == 0 || !r.hit("limit", "quota of 3m") {
		t.Errorf("after a time without the network: %+v", r)
	}
	w.says(t, "down", "box")

	w.says(t, "up", "--network", "full", "--network-quota", "3m", "box")
	cannotCount("from full", "proxied", "--allow", nearName)
	w.change(t, "box", "none")
	cannotCount("from full over none", "proxied", "--allow", nearName)
	w.change(t, "box", "full")
	w.says(t, "down", "box")
}

// A network that cannot have a limit of the sandbox is refused.
func TestLimitsOfOtherNetworksAreRefused(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	for _, c := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--network", "proxied", "--network-rate", "1m"}, `--network-rate: needs the network "full"`},
		{[]string{"--allow", nearName, "--network-rate", "1m"}, `--network-rate: needs the network "full"`},
		{[]string{"--network", "full", "--network-requests", "3"}, `--network-requests: needs the network "proxied"`},
		{[]string{"--network-quota", "1m"}, `--network-quota: needs the network "proxied" or "full"`},
	} {
		if got := w.on(t, append(append([]string{"do"}, c.flags...), "--", "true")...); got.code != 125 || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%q: %+v", c.flags, got)
		}
	}
	w.says(t, "up", "--network", "full", "--network-rate", "1m", "box")
	for _, from := range []string{"full", "none"} {
		w.change(t, "box", from)
		if got := w.on(t, "network", "box", "proxied", "--allow", nearName); got.code == 0 || !strings.Contains(got.stderr, "network_rate") {
			t.Errorf("a rate, from %s: %+v", from, got)
		}
	}
	w.says(t, "down", "box")
}
