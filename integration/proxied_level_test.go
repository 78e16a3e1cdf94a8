package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Confidential data leave a sandbox the network proxied without rules. The owner can add rules, and no command
// gives it the network full again until the owner removes the sandbox. Secret data end the network.
func TestConfidentialDataNarrowFullToProxied(t *testing.T) {
	need(t, world(), layersOfAnywhere(t))
	w := newFarWorld(t)
	w.says(t, "up", "--network", "full", "--overlay", newHome(t), "box")
	w.downloads(t, worldServer, "download")
	got := w.change(t, "--sensitivity", "confidential", "box")
	if got.From != "full" || got.To != "proxied" || got.ConnectionsCut != 1 || !got.Raised || !strings.Contains(got.Message, "because confidential data entered") {
		t.Errorf("confidential: %+v", got)
	}
	w.hasFailed(t, "download")
	isNarrow := func(when string) {
		t.Helper()
		if now := w.change(t, "box"); now.To != "proxied" || now.Sensitivity != "confidential" {
			t.Errorf("%s: %+v", when, now)
		}
		w.isRefused(t, when+", an address", "http://"+worldServer)
		w.isRefused(t, when+", a name", "http://"+nearName)
		if got := w.on(t, "network", "box", "full"); got.code == 0 || !strings.Contains(got.stderr, `permits at most the network "proxied"`) {
			t.Errorf("%s: full: %+v", when, got)
		}
		w.isRefused(t, when+", after a try", "http://"+worldServer)
	}
	isNarrow("confidential")
	w.says(t, "exec", "box", "pkill", "sleep") // a file of it is open
	eventually(t, "the process has ended", func() bool { return w.on(t, "exec", "box", "pgrep", "sleep").code == 1 })
	w.says(t, "snapshot", "box", "snap")
	if got := w.on(t, "up", "--network", "full", "--from", "snap", "fork"); got.code != 0 || !strings.Contains(got.stderr, "proxied, not full, because its sensitivity is confidential") {
		t.Errorf("fork: %+v", got)
	}
	if now := w.change(t, "fork"); now.To != "proxied" || now.Sensitivity != "confidential" {
		t.Errorf("a fork: %+v", now)
	}
	w.says(t, "down", "fork")
	w.killInit("box")
	w.says(t, "up", "--network", "full", "box")
	isNarrow("after a crash")
	w.killInit("box")
	w.says(t, "snapshot", "--remove", "snap")
	w.says(t, "prune")
	w.says(t, "up", "--network", "full", "box")
	isNarrow("after a crash and prune")

	w.change(t, "box", "proxied", "--allow", nearName)
	w.gets(t, "with a rule", "http://"+nearName, nearName+"\n")
	w.downloads(t, nearName, "secrets")
	if got := w.change(t, "--sensitivity", "secret", "box"); got.From != "proxied" || got.To != "none" || got.ConnectionsCut != 1 {
		t.Errorf("secret: %+v", got)
	}
	w.hasFailed(t, "secrets")
	w.isRefused(t, "secret", "http://"+nearName)
	if got := w.on(t, "network", "box", "proxied", "--allow", nearName); got.code == 0 || !strings.Contains(got.stderr, "secret") {
		t.Errorf("secret: %+v", got)
	}
	w.says(t, "down", "box")
	w.says(t, "up", "--network", "full", "box")
	w.gets(t, "after down", "http://"+worldServer, worldServer+"\n")
	w.says(t, "down", "box")
}

// Limits of full do not hold in proxied: a sandbox with such a limit has no network then. The configuration can
// name other networks for the levels.
func TestLevelsWithLimitsAndCeilings(t *testing.T) {
	need(t, world())
	w := newFarWorld(t)
	for _, limit := range [][]string{{"--network-rate", "1m"}, {"--network-quota", "1m"}} {
		w.says(t, append(append([]string{"up", "--network", "full"}, limit...), "box")...)
		if got := w.change(t, "--sensitivity", "confidential", "box"); got.To != "none" {
			t.Errorf("%q: %+v", limit, got)
		}
		w.says(t, "down", "box")
	}
	config := filepath.Join(t.TempDir(), "config.json")
	writeFile(t, config, `{"network":"full","ceilings":{"internal":"proxied","confidential":"none"}}`)
	w.says(t, "up", "--config", config, "box")
	for _, step := range []struct{ level, network string }{{"internal", "proxied"}, {"confidential", "none"}, {"secret", "none"}} {
		got := w.change(t, "--sensitivity", step.level, "box")
		if got.To != sandbox.Network(step.network) {
			t.Errorf("%s: %+v", step.level, got)
		}
		for _, wider := range [][]string{{"full"}, {"proxied", "--allow", nearName}} {
			if wider[0] == step.network {
				continue
			}
			if got := w.on(t, append([]string{"network", "box"}, wider...)...); got.code == 0 || !strings.Contains(got.stderr, "permits at most") {
				t.Errorf("%s: %q: %+v", step.level, wider, got)
			}
		}
	}
	w.says(t, "down", "box")
	writeFile(t, config, `{"ceilings":{"internal":"proxied","confidential":"full"}}`)
	if got := w.on(t, "up", "--config", config, "box"); got.code == 0 || !strings.Contains(got.stderr, `"full" is wider than "proxied"`) {
		t.Errorf("a wider network of a higher level: %+v", got)
	}
}
