package upstream

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// clearEnvironment removes the variables of proxies.
func clearEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
}

func TestResolve(t *testing.T) {
	clearEnvironment(t)
	const url = "http://me:p%40ss@Proxy.corp:8080/"
	shown, u, err := Resolve(url)
	if err != nil || shown != "http://proxy.corp:8080" || u.HTTP != "http://me:p%40ss@proxy.corp:8080" || u.HTTPS != u.HTTP || u.NoProxy != "" {
		t.Errorf("a URL: %q, %+v, %v", shown, *u, err)
	}
	if strings.Contains(u.String(), "ss") {
		t.Errorf("the text has the password: %v", u)
	}
	if shown, u, err := Resolve("env"); shown != "env" || err != nil || u == nil || !u.IsEmpty() {
		t.Errorf("an environment without a proxy: %q, %v, %v", shown, u, err)
	}
	if IsInEnvironment() {
		t.Error("an environment without a proxy has one")
	}
	t.Setenv("https_proxy", "me:word@proxy.corp:3128")
	t.Setenv("HTTP_PROXY", "http://other.corp")
	t.Setenv("NO_PROXY", ".corp,10.0.0.0/8")
	shown, u, err = Resolve("env")
	if err != nil || shown != "env" || u.HTTPS != "http://me:word@proxy.corp:3128" || u.HTTP != "http://other.corp:80" || u.NoProxy != ".corp,10.0.0.0/8" {
		t.Errorf("an environment: %q, %+v, %v", shown, *u, err)
	}
	if !IsInEnvironment() {
		t.Error("the environment has a proxy")
	}
	t.Setenv("REQUEST_METHOD", "GET")
	if _, u, err := Resolve("env"); err != nil || u.HTTP != "" || u.HTTPS == "" {
		t.Errorf("a CGI: %v, %v", u, err)
	}
	t.Setenv("HTTPS_PROXY", "socks5://me:word@proxy.corp:1080")
	if _, _, err := Resolve("env"); err == nil || !strings.Contains(err.Error(), "HTTPS_PROXY") || !strings.Contains(err.Error(), `"socks5" is not supported`) || strings.Contains(err.Error(), "word") {
		t.Errorf("SOCKS: %v", err)
	}
}

func TestFor(t *testing.T) {
	p, err := New(spec.Upstream{HTTP: "http://one.corp:3128", HTTPS: "http://me:word@two.corp:3128", NoProxy: "direct.test,.below.test,10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	none, err := New(spec.Upstream{HTTP: "http://one.corp:3128"})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		proxies *Proxies
		traffic Traffic
		host    string
		want    string
	}{
		{p, Requests, "example.com", "http://one.corp:3128"},
		{p, Tunnel, "example.com", "http://two.corp:3128"},
		{p, Tunnel, "direct.test", ""},
		{p, Tunnel, "sub.direct.test", ""},
		{p, Tunnel, "below.test", "http://two.corp:3128"},
		{p, Tunnel, "x.below.test", ""},
		{p, Tunnel, "10.1.2.3", ""},
		{p, Tunnel, "8.8.8.8", "http://two.corp:3128"},
		{p, Tunnel, "2600::1", "http://two.corp:3128"},
		{p, Tunnel, "localhost", ""},
		{none, Tunnel, "example.com", ""},
		{none, Requests, "example.com", "http://one.corp:3128"},
		{nil, Tunnel, "example.com", ""},
	} {
		got := ""
		proxy, err := x.proxies.For(x.traffic, x.host, 443)
		if proxy != nil {
			got = proxy.String()
		}
		if got != x.want || err != nil {
			t.Errorf("%s to %s: %q, %v; want %q", x.traffic, x.host, got, err, x.want)
		}
	}
}

func TestNamesOfTheProxysMachineAreRefused(t *testing.T) {
	p, err := New(spec.Upstream{HTTP: "http://proxy.corp:3128", HTTPS: "http://[2600::5]:3128"})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"proxy.corp", "PROXY.corp.", "2600::5", "2600:0::5", "localhost", "x.localhost", "localhost.localdomain", "ip6-localhost",
		"metadata.google.internal", "metadata", "instance-data.ec2.internal", "x.metadata.google.internal", "host.docker.internal",
	} {
		if p.Refuses(host) == "" {
			t.Errorf("%s is not refused", host)
		}
	}
	for _, host := range []string{"example.com", "proxy.corp.example.com", "metadata.example.com", "x.internal", "2600::6"} {
		if reason := p.Refuses(host); reason != "" {
			t.Errorf("%s: %s", host, reason)
		}
	}
}
