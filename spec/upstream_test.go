package spec

import (
	"strings"
	"testing"
)

func TestParseUpstreamURL(t *testing.T) {
	for text, want := range map[string]string{
		"http://proxy.corp:3128":          "http://proxy.corp:3128",
		"http://Proxy.corp/":              "http://proxy.corp:80",
		"https://me:secret@proxy.corp":    "https://proxy.corp:443",
		"http://me:p%40ss@[2600::1]:8080": "http://[2600::1]:8080",
		"http://10.0.0.1:1":               "http://10.0.0.1:1",
	} {
		u, err := ParseUpstreamURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if shown := ShownUpstream(text); shown != want || ShownUpstream(shown) != want || ShownUpstream(u.String()) != want {
			t.Errorf("%s: shown as %s, want %s", text, shown, want)
		}
	}
	for _, text := range []string{
		"", "proxy.corp:3128", "me:secret@proxy.corp", "socks5://me:secret@a.test", "http://me:secret@", "http://me:secret@a.test:0", "http://me:secret@a.test:70000",
		"http://me:secret@a.test/path", "http://me:secret@a.test?q", "http://me:secret@a.test#f", "http://me:secret%zz@a.test", "http://me:secret@[fe80::1%25eth0]:80",
		"http:me:secret@a.test", "http://me:secret@a b.test", "http://me:secret@" + strings.Repeat("a", 2000), "ftp://me:secret@a.test",
	} {
		if u, err := ParseUpstreamURL(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", text, u, err)
		}
	}
}

func TestUpstreamProxyNeedsTheNetworkProxied(t *testing.T) {
	for field, c := range map[string]Config{
		"upstream_proxy: needs":    {UpstreamProxy: UpstreamEnv},
		"upstream_proxy: needs ":   {UpstreamProxy: UpstreamEnv, Network: NetworkFull},
		"observe: cannot":          {UpstreamProxy: UpstreamEnv, Observe: true},
		"upstream_proxy: not the ": {UpstreamProxy: "me:secret@proxy.corp", Allow: []string{"a.test"}},
	} {
		if _, err := c.Complete(); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(field)) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", field, err)
		}
	}
	c, err := Config{UpstreamProxy: UpstreamEnv, Allow: []string{"a.test"}, Ask: true}.Complete()
	if err != nil || c.Grant().UpstreamProxy != UpstreamEnv {
		t.Errorf("%+v, %v", c, err)
	}
	if next := c.WithNetwork(NetworkGrant{Network: NetworkProxied}); next.UpstreamProxy != "" || next.Grant().Equal(c.Grant()) {
		t.Errorf("another grant keeps the upstream proxy: %+v", next)
	}
	if text := (Upstream{HTTP: "http://me:secret@a.test", HTTPS: "http://b.test"}).String(); strings.Contains(text, "secret") {
		t.Error(text)
	}
}
