package spec

import (
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
		{"", SensitivityConfidential, NetworkNone, SensitivityConfidential},
		{"", SensitivitySecret, NetworkNone, SensitivitySecret},
		{SensitivityInternal, SensitivityPublic, NetworkFull, SensitivityInternal},
		{SensitivityInternal, "", NetworkFull, SensitivityInternal},
	} {
		got, err := Config{Sensitivity: c.from}.WithNetwork(full).Changed(nil, c.to)
		if err != nil || got.Network != c.want || got.Sensitivity != c.level || (got.Network == NetworkNone) != (len(got.Allow) == 0) {
			t.Errorf("%+v: %+v, %v", c, got.Grant(), err)
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
