package protocol

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// JSON would change these texts. The error leaves out the value of a variable, which can be a password.
func TestAConfigurationIsText(t *testing.T) {
	for name, test := range map[string]struct {
		config spec.Config
		want   string
	}{
		"cwd":         {spec.Config{Cwd: "/a\xff"}, `cwd: "/a\xff" is not UTF-8`},
		"target":      {spec.Config{Binds: []spec.Bind{{Source: "/", Target: "/a\xff"}}}, `binds[0].target: "/a\xff" is not UTF-8`},
		"source":      {spec.Config{Binds: []spec.Bind{{Source: "/a\xff", Target: "/a"}}}, `binds[0].source: "/a\xff" is not UTF-8`},
		"a variable":  {spec.Config{Env: map[string]string{"A": "secret\xff"}}, `env: the value of A is not UTF-8`},
		"its name":    {spec.Config{Env: map[string]string{"A\xff": "secret"}}, `env: the name "A\xff" is not UTF-8`},
		"an overlay":  {spec.Config{Overlays: []string{"/a\xff"}}, `overlays[0]: "/a\xff" is not UTF-8`},
		"a workspace": {spec.Config{Workspace: "/a\xff"}, `workspace: "/a\xff" is not UTF-8`},
	} {
		s, err := openSources(&test.config)
		if err == nil {
			s.close()
			t.Errorf("%s: no error", name)
		} else if got := err.Error(); !strings.Contains(got, test.want) || strings.Contains(got, "secret") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
