package special

import (
	"net/netip"
	"testing"
)

func TestSpecialAddresses(t *testing.T) {
	for a, want := range map[string]bool{
		"127.0.0.1": true, "0.0.0.0": true, "10.1.2.3": true, "169.254.169.254": true, "100.64.0.1": true, "239.1.1.1": true, "255.255.255.255": true,
		"8.8.8.8": false, "172.15.255.255": false, "172.32.0.0": false, "1.1.1.1": false,
		"::": true, "::1": true, "::ffff:8.8.8.8": true, "64:ff9b::808:808": true, "64:ff9b:1::1": true, "2002:808:808::1": true, "2001::1": true,
		"fe80::1": true, "fe80::1%eth0": true, "fec0::1": true, "fd53::2": true, "ff02::1": true,
		"2001:4860:4860::8888": false, "2a00:1450::1": false, "2a00:1450::1%eth0": false,
	} {
		if got := Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
}
