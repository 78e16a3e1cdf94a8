package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestUpstreamProxiesOfRulesThatAreNone(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		t.Setenv(name, "")
	}
	for text, says := range map[string]string{
		`"upstream_proxy":"http://proxy.corp:3128"`:                                "add \"proxied\" to networks",
		`"networks":["proxied"],"upstream_proxy":"env"`:                            "the environment of the launcher has no HTTP_PROXY",
		`"networks":["proxied"],"upstream_proxy":"socks5://me:secret@a.test:1080"`: `"socks5" is not supported`,
		`"networks":["proxied"],"upstream_proxy":"http://me:secret@"`:              "write http://HOST:PORT",
	} {
		_, err := parseRules([]byte(`{"peers":[{"user":7,` + text + `}]}`))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A user of a rule has the upstream proxy of the rule, and chooses none: the launcher would connect to any host.
func TestAUserChoosesNoUpstreamProxy(t *testing.T) {
	with, err := parseRules([]byte(`{"peers":[{"user":7,"networks":["proxied"],"network_allow":["a.test"],"upstream_proxy":"http://me:secret@proxy.corp:3128"},
		{"user":8,"networks":["proxied"],"network_allow":["a.test"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	own := &spec.Upstream{HTTP: "http://127.0.0.1:22", HTTPS: "http://127.0.0.1:22"}
	for i := range with.Peers {
		r := &with.Peers[i]
		for _, c := range []protocol.Create{
			{Config: spec.Config{Allow: []string{"a.test"}, UpstreamProxy: "http://127.0.0.1:22"}, Upstream: own},
			{Config: spec.Config{Allow: []string{"a.test"}}, Upstream: own},
			{Config: spec.Config{Allow: []string{"a.test"}, UpstreamProxy: "env"}, Upstream: &spec.Upstream{}},
		} {
			if err := r.allow(&c, nil); !errors.Is(err, fault.ErrRefused) || strings.Contains(err.Error(), "secret") {
				t.Errorf("user %s: %+v: %v", r.User, c, err)
			}
		}
		c := protocol.Create{Config: spec.Config{Allow: []string{"a.test"}}}
		if err := r.allow(&c, nil); err != nil {
			t.Errorf("user %s: %v", r.User, err)
		}
		want := map[UserName]string{"7": "http://proxy.corp:3128"}[r.User]
		if c.Config.UpstreamProxy != want || (c.Upstream != nil) != (want != "") || want != "" && c.Upstream.HTTPS != "http://me:secret@proxy.corp:3128" {
			t.Errorf("user %s: %q, %+v", r.User, c.Config.UpstreamProxy, c.Upstream)
		}
		none := &spec.NetworkGrant{Network: spec.NetworkNone}
		if u, err := r.setUpstream(none, nil); u != nil || err != nil || none.UpstreamProxy != "" {
			t.Errorf("user %s, the network none: %v, %v", r.User, u, err)
		}
	}
}

// The upstream proxy can lead a name of the user to an address that the network full does not reach.
func TestAUserOfAnUpstreamProxyHasTheNamesOfTheRule(t *testing.T) {
	with, err := parseRules([]byte(`{"peers":[{"user":7,"networks":["full","proxied"],"network_allow":["a.test"],"upstream_proxy":"http://proxy.corp:3128"},
		{"user":8,"networks":["full","proxied"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range with.Peers {
		r := &with.Peers[i]
		for _, c := range []spec.Config{
			{Allow: []string{"any.test"}},
			{Network: spec.NetworkProxied, Observe: true},
			{Network: spec.NetworkProxied, Ask: true},
		} {
			grant := c.Grant()
			_, err := r.allowGrant(&grant)
			if isRefused := errors.Is(err, fault.ErrRefused); isRefused != (r.upstream != nil) || !isRefused && err != nil {
				t.Errorf("user %s: %+v: %v", r.User, grant, err)
			}
		}
	}
	if _, err := with.Peers[0].allowGrant(&spec.NetworkGrant{Allow: []string{"a.test"}}); err != nil {
		t.Errorf("a name of the rule: %v", err)
	}
}
