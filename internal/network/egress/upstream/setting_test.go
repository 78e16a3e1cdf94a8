package upstream

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

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
