package rules

import (
	"strings"
	"testing"
)

// clearEnvironment removes the variables of proxies.
func clearEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
}

func TestResolveUpstream(t *testing.T) {
	clearEnvironment(t)
	const url = "http://me:p%40ss@Proxy.corp:8080/"
	shown, u, err := ResolveUpstream(url)
	if err != nil || shown != "http://proxy.corp:8080" || u.HTTP != "http://me:p%40ss@proxy.corp:8080" || u.HTTPS != u.HTTP || u.NoProxy != "" {
		t.Errorf("a URL: %q, %+v, %v", shown, *u, err)
	}
	if strings.Contains(u.String(), "ss") {
		t.Errorf("the text has the password: %v", u)
	}
	if shown, u, err := ResolveUpstream("env"); shown != "env" || err != nil || u == nil || !u.IsEmpty() {
		t.Errorf("an environment without a proxy: %q, %v, %v", shown, u, err)
	}
	if HasUpstreamEnvironment() {
		t.Error("an environment without a proxy has one")
	}
	t.Setenv("https_proxy", "me:word@proxy.corp:3128")
	t.Setenv("HTTP_PROXY", "http://other.corp")
	t.Setenv("NO_PROXY", ".corp,10.0.0.0/8")
	shown, u, err = ResolveUpstream("env")
	if err != nil || shown != "env" || u.HTTPS != "http://me:word@proxy.corp:3128" || u.HTTP != "http://other.corp:80" || u.NoProxy != ".corp,10.0.0.0/8" {
		t.Errorf("an environment: %q, %+v, %v", shown, *u, err)
	}
	if !HasUpstreamEnvironment() {
		t.Error("the environment has a proxy")
	}
	t.Setenv("REQUEST_METHOD", "GET")
	if _, u, err := ResolveUpstream("env"); err != nil || u.HTTP != "" || u.HTTPS == "" {
		t.Errorf("a CGI: %v, %v", u, err)
	}
	t.Setenv("HTTPS_PROXY", "socks5://me:word@proxy.corp:1080")
	if _, _, err := ResolveUpstream("env"); err == nil || !strings.Contains(err.Error(), "HTTPS_PROXY") || !strings.Contains(err.Error(), `"socks5" is not supported`) || strings.Contains(err.Error(), "word") {
		t.Errorf("SOCKS: %v", err)
	}
}
