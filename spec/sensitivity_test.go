package spec

import (
	"slices"
	"strings"
	"testing"
)

func TestLevelsBoundTheNetwork(t *testing.T) {
	full := NetworkGrant{Network: NetworkFull, Allow: []string{"10.0.0.1"}}
	for _, c := range []struct {
		from, to Sensitivity
		want     Network
		level    Sensitivity
	}{
		{"", SensitivityPublic, NetworkFull, SensitivityPublic},
		{"", SensitivityInternal, NetworkFull, SensitivityInternal},
		{"", SensitivityConfidential, NetworkProxied, SensitivityConfidential},
		{"", SensitivitySecret, NetworkNone, SensitivitySecret},
		{SensitivityInternal, SensitivityPublic, NetworkFull, SensitivityInternal},
		{SensitivityInternal, "", NetworkFull, SensitivityInternal},
	} {
		got, err := Config{Sensitivity: c.from}.WithNetwork(full).Changed(nil, c.to)
		if err != nil || got.Network != c.want || got.Sensitivity != c.level || (got.Network == NetworkFull) != (len(got.Allow) > 0) {
			t.Errorf("%+v: %+v, %v", c, got.Grant(), err)
		}
	}
}

// A network that keeps no limit of full is not a narrower one.
func TestLimitsOfFullEndTheNetwork(t *testing.T) {
	for _, limits := range []Limits{{NetworkRate: 1 << 20}, {NetworkQuota: 1 << 20}} {
		c := Config{Limits: limits}.WithNetwork(NetworkGrant{Network: NetworkFull, Deny: []string{"192.0.2.1"}})
		if got := c.Raised(SensitivityConfidential); got.Network != NetworkNone || len(got.Deny) != 0 {
			t.Errorf("%+v: %+v", limits, got.Grant())
		}
	}
	c := Config{}.WithNetwork(NetworkGrant{Network: NetworkFull, Allow: []string{"10.0.0.1"}, Deny: []string{"192.0.2.1"}})
	if got := c.Raised(SensitivityConfidential).Grant(); !got.Equal(NetworkGrant{Network: NetworkProxied}) {
		t.Errorf("%+v", got)
	}
}

// To observe is to reach each name, as full does.
func TestAConfidentialSandboxIsNotObserved(t *testing.T) {
	c := Config{}.WithNetwork(NetworkGrant{Network: NetworkProxied, Allow: []string{"a.example"}, Observe: true})
	got := c.Raised(SensitivityConfidential).Grant()
	if want := (NetworkGrant{Network: NetworkProxied, Allow: []string{"a.example"}}); !got.Equal(want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	message := NewNetworkChange(c, c.Raised(SensitivityConfidential), 0).Message
	if want := "The sensitivity of this sandbox is confidential now. Its network is still proxied, without --observe and with the names of its rules alone."; message != want {
		t.Errorf("%q, want %q", message, want)
	}
	c.Sensitivity = SensitivityConfidential
	if _, err := c.Complete(); err == nil || !strings.Contains(err.Error(), "observe: it reaches each name") {
		t.Error(err)
	}
}

func TestRulesMeanTheProxiedNetwork(t *testing.T) {
	for want, grants := range map[Network][]NetworkGrant{
		NetworkNone:    {{}},
		NetworkProxied: {{Allow: []string{"a.example"}}, {Deny: []string{"a.example"}}, {Observe: true}, {Ask: true}},
		NetworkFull:    {{Network: NetworkFull, Allow: []string{"192.0.2.1"}}},
	} {
		for _, g := range grants {
			if got, err := (Config{}).WithNetwork(g).Complete(); err != nil || got.Network != want || g.Kind() != want {
				t.Errorf("%+v: %q, %v", g, got.Network, err)
			}
		}
	}
}

func TestNothingWidensBeyondTheLevel(t *testing.T) {
	secret, err := Config{Sensitivity: SensitivitySecret}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	for _, level := range append(Sensitivities(), "") {
		if got, err := secret.Changed(&NetworkGrant{Network: NetworkFull}, level); err == nil || !strings.Contains(err.Error(), "permits at most") {
			t.Errorf("%q: %+v, %v", level, got.Grant(), err)
		}
		if got, err := secret.Changed(&NetworkGrant{Network: NetworkNone}, level); err != nil || got.Sensitivity != SensitivitySecret {
			t.Errorf("%q: %+v, %v", level, got, err)
		}
	}
	if _, err := secret.Changed(nil, "low"); err == nil || !strings.Contains(err.Error(), `"low"; use public, internal, confidential or secret`) {
		t.Error(err)
	}
}

func TestCeilings(t *testing.T) {
	c := Config{Network: NetworkFull, Sensitivity: SensitivityConfidential, Ceilings: map[Sensitivity]Network{SensitivityConfidential: NetworkFull}}
	if got, err := c.Complete(); err != nil || got.Network != NetworkFull {
		t.Errorf("%+v, %v", got.Grant(), err)
	}
	for name, ceilings := range map[string]map[Sensitivity]Network{
		"wider than":      {SensitivityPublic: NetworkNone},
		"unknown level":   {"low": NetworkFull},
		"unknown network": {SensitivitySecret: "some"},
	} {
		if _, err := (Config{Ceilings: ceilings}).Complete(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ports can be published with each network, at a level that permits full. A higher level closes them, also if the network
// stays.
func TestTheLevelPermitsPublishedPorts(t *testing.T) {
	grant := NetworkGrant{Publish: []string{"8080:80"}}
	for _, network := range Networks() {
		grant.Network = network
		c, err := Config{}.Changed(&grant, SensitivityInternal)
		if err != nil || !slices.Equal(c.Publish, grant.Publish) {
			t.Fatalf("%s: %q, %v", network, c.Publish, err)
		}
		for _, level := range []Sensitivity{SensitivityConfidential, SensitivitySecret} {
			raised, err := c.Changed(nil, level)
			if err != nil || len(raised.Publish) > 0 {
				t.Errorf("%s at %s: %q, %v", network, level, raised.Publish, err)
			}
			if _, err := raised.Changed(&NetworkGrant{Network: NetworkNone, Publish: grant.Publish}, ""); err == nil || !strings.Contains(err.Error(), "publish: needs a level that permits") {
				t.Errorf("%s at %s: ports later: %v", network, level, err)
			}
			c.Ceilings = map[Sensitivity]Network{SensitivityConfidential: NetworkFull, SensitivitySecret: NetworkFull}
			if open, err := c.Changed(nil, level); err != nil || len(open.Publish) == 0 {
				t.Errorf("%s at %s with another ceiling: %q, %v", network, level, open.Publish, err)
			}
			c.Ceilings = nil
		}
	}
}

// A person reads of a higher level and of other rules, also if one command changes both.
func TestMessagesOfAChangeNameTheLevelAndTheRules(t *testing.T) {
	observed := Config{Network: NetworkProxied, Observe: true}
	named := Config{Network: NetworkProxied, Allow: []string{"a.test"}}
	for want, test := range map[string]struct {
		from, to Config
		level    Sensitivity
	}{
		"The sensitivity of this sandbox is confidential now. Its network is still proxied, without --observe and with the names of its rules alone.": {
			observed, observed, SensitivityConfidential},
		"The sensitivity of this sandbox is internal now. Its network is still proxied, with other rules.": {named, Config{Network: NetworkProxied}, SensitivityInternal},
		"The sensitivity of this sandbox is internal now. Its network is still proxied.":                   {observed, observed, SensitivityInternal},
		"The network of this sandbox is still proxied, with other rules.":                                  {named, observed, ""},
		"The network of this sandbox is still proxied, without --observe and with the names of its rules alone.": {
			observed, named, ""},
		"The network of this sandbox is still proxied, without the upstream proxy; repeat --upstream-proxy to keep it.": {
			Config{Network: NetworkProxied, UpstreamProxy: "http://proxy.test:3128"}, named, ""},
	} {
		if got := NewNetworkChange(test.from, test.to.Raised(test.level), 0).Message; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
