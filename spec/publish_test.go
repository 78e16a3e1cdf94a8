package spec

import (
	"fmt"
	"strings"
	"testing"
)

func TestAPublishedPortIsParsed(t *testing.T) {
	for text, want := range map[string]string{
		"8080:80":             "127.0.0.1:8080:80",
		"53:53/udp":           "127.0.0.1:53:53/udp",
		"0.0.0.0:8080:80":     "0.0.0.0:8080:80",
		"[::1]:8080:80/udp":   "[::1]:8080:80/udp",
		"192.0.2.1:65535:1":   "192.0.2.1:65535:1",
		"[2001:db8::1]:80:80": "[2001:db8::1]:80:80",
	} {
		if p, err := ParsePublishedPort(text); err != nil || p.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, p, err, want)
		}
	}
	for _, text := range []string{
		"", "80", ":80", "80:", "0:80", "80:0", "80:65536", "80:80/tcp", "80:80/udp/udp", "example.com:80:80", "::1:80:80",
		"[::1:80:80", "[127.0.0.1]:80:80", "[fe80::1%eth0]:80:80", "[::ffff:127.0.0.1]:80:80", ":80:80", "1.2.3.4:80", "a:b:c", "-1:80",
	} {
		if p, err := ParsePublishedPort(text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: %v, %v", text, p, err)
		}
	}
}
