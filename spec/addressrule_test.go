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
