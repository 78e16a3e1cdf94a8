package integration

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// The rules that an observed run needed suffice for the next run, and none of them is for another name or port.
func TestSuggestedRulesSuffice(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newProxiedWorld(t)
	for name, want := range map[string][]string{
		"pip":          {"pypi.test:443", "files.pypi.test:443"},
		"npm":          {"npm.test:443", "files.npm.test:443"},
		"go":           {"modules.test:443", archiveName + ":443"},
		"git over ssh": {serverName + ":22"},
		"psql":         {"db.test:5432"},
	} {
		c := clientOf(t, name)
		t.Run(name, func(t *testing.T) {
			need(t, c.missing())
			for _, before := range []string{noProxy, ""} {
				w.says(t, append(append([]string{"up"}, w.flags(t, nil)...), "--network", "proxied", "--observe", "box")...)
				c.succeeds(t, w, "observed", before)
				var rules []string
				for line := range strings.Lines(w.says(t, "network", "--suggest", "box")) {
					rule, _ := strings.CutPrefix(strings.TrimSpace(line), "--allow ")
					rules = append(rules, rule)
				}
				w.says(t, "down", "box")
				slices.Sort(rules)
				if sorted := slices.Sorted(slices.Values(want)); !slices.Equal(rules, sorted) {
					t.Errorf("the suggested rules are %q, want %q", rules, sorted)
				}
				w.says(t, append(append([]string{"up"}, w.flags(t, rules)...), "box")...)
				c.succeeds(t, w, "with the suggested rules", before)
				w.says(t, "down", "box")
			}
		})
	}
	w.outsideSees(t, clientRules)
}
