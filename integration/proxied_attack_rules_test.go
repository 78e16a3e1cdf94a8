package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// wrongRules are rules that cannot be read, with a part of the error.
var wrongRules = map[string]string{
	"a..b": "label 2", "http://a.test": "no \"http://\"", "*": "*.SUFFIX", "a.*.test": "label 2", "a.test:0": "no port", "a.test:70000": "no port", "a.test:9-8": "go down", "a.test:": "no port after",
	"@nobody": "presets are", "get a.test": "no method", "a.test/a//b": "two slashes", "a.test/../b": "segment ..", "a.test/%zz": "two hexadecimal", "a.test/%2e": "segment .",
	"9.9.9.9/33": "no address range", "9.9.9.9/24": "9.9.9.0/24", "9.9.9": "no IPv4 address", "0x7f.1": "no IPv4 address", "151587081": "no IPv4 address", "127.0.0.1": "the sandbox itself",
	"198.18.0.1": "stand for names", "198.18.5.0/24": "stand for names", "fd53::1": "stand for names", "::1": "the sandbox itself", "localhost": "the sandbox itself",
	"[::1": "no ]", "a_": "last and has a _", "-a.test": "hyphen", strings.Repeat("a", 64) + ".test": "63", strings.Repeat("a.", 130) + "test": "253",
	"a.test ;  why": "reason", "a\x1b[31m.test": `\x1b`, "xn--a.test": "international", "GET 9.9.9.9": "need a name", "a.test ; \x1b[31m": "cannot be printed",
}

// An error about a rule names the rule and its place, and makes no sandbox.
func TestWrongRulesAreNamedWithTheirPlace(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	dir := t.TempDir()
	refused := func(what, says, place string, args ...string) {
		t.Helper()
		got := w.on(t, args...)
		if got.code != 125 && got.code != 1 || !strings.Contains(got.stderr, says) || !strings.Contains(got.stderr, place) {
			t.Errorf("%q %q: %+v; want %q and %q", args[0], what, got, place, says)
		}
		if bad := badCharacter(got.stderr); bad != "" {
			t.Errorf("%q: the error has %s", what, bad)
		}
	}
	for rule, says := range wrongRules {
		refused(rule, says, "--allow", "do", "--allow", "good.test", "--allow", rule, "--", "true")
		refused(rule, says, "--deny", "do", "--deny", rule, "--", "true")
		file := filepath.Join(dir, "rules")
		writeFile(t, file, "good.test\n\n# a comment\n"+rule+"\ndeny "+rule+"\n")
		refused(rule, says, file+":4: ", "do", "--network-rules", file, "--", "true")
		refused(rule, says, file+":5: ", "do", "--network-rules", file, "--", "true")
	}
	config := filepath.Join(dir, "config.json")
	writeFile(t, config, `{"network": "proxied", "allow": ["good.test", "a..b"], "deny": ["c.test", "d.test", "e.test:0"]}`)
	refused("a configuration", "label 2", "allow[1]: ", "do", "--config", config, "--", "true")
	refused("a configuration", "no port", "deny[2]: ", "do", "--config", config, "--", "true")
	if got := w.on(t, "up", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { w.on(t, "down", "box") })
	refused("a change", "label 2", "--allow", "network", "box", "proxied", "--allow", "a..b")
	if got := w.on(t, "network", "box"); !strings.Contains(got.stdout, "none") {
		t.Errorf("after a refused change: %+v", got)
	}
}
