package spec

import (
	"fmt"
	"strings"
	"testing"
)

func TestWhatAnAddressRuleIs(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1":           "192.0.2.1/32 0-0",
		"192.0.2.0/24:443":    "192.0.2.0/24 443-443",
		"2001:db8::/32":       "2001:db8::/32 0-0",
		"[2001:db8::1]:80-90": "2001:db8::1/128 80-90",
		"[2001:db8::]/64:80":  "2001:db8::/64 80-80",
	} {
		if r, err := ParseAddressRule(text); err != nil || fmt.Sprintf("%s %d-%d", r.Prefix, r.Ports.First, r.Ports.Last) != want {
			t.Errorf("%s: %v, %v; want %s", text, r, err, want)
		}
	}
	for _, text := range []string{
		"", "example.com", "192.0.2.0/33", "192.0.2.1/24", "192.0.2.1:", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:9-8",
		"[2001:db8::1", "[2001:db8::1]:", "::ffff:192.0.2.1", "fe80::1%eth0", "192.0.2.1:80:90", "0x7f.1", "192.0.2.1/24/24",
	} {
		if r, err := ParseAddressRule(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

// A rule that can have no effect is refused. So is a name, with the way to say the same.
func TestRulesWithoutEffectAreRefused(t *testing.T) {
	for _, text := range []string{"127.0.0.1:22", "127.0.0.0/8", "[::1]:80", "0.0.0.0", "::"} {
		_, err := Config{Network: NetworkFull, Allow: []string{"192.0.2.1", text}}.Complete()
		if err == nil || !strings.Contains(err.Error(), "allow[1]") || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"0.0.0.0/0", "::/0"} {
		if _, err := (Config{Network: NetworkFull, Allow: []string{text}}).Complete(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ParseAddressRule("github.com:443"); err == nil || !strings.Contains(err.Error(), `names need the network "proxied"`) {
		t.Error(err)
	}
}
