package proxy

import (
	"io"
	"net/netip"
	"regexp"
	"strings"
	"testing"
)

// An outcome is the answer to a request, and its event.
type outcome struct {
	answer string
	event  Event
}

// exchange sends a request. A client that is slow to begin is reset without an answer, so exchange tries again.
func (w *world) exchange(t *testing.T, to, request string) outcome {
	t.Helper()
	for range 20 {
		c := dialTo(t, to)
		io.WriteString(c, request)
		answer, _ := io.ReadAll(c)
		c.Close()
		if e := w.event(t); len(answer) > 0 {
			return outcome{string(answer), e}
		}
	}
	t.Fatalf("%q: no answer", request)
	return outcome{}
}

// askInThreeWays asks for the host and port: captured at an address, with a request to the proxy, and with a tunnel.
func (w *world) askInThreeWays(t *testing.T, host string, at netip.AddrPort, explicit string) map[string]outcome {
	t.Helper()
	field := " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	return map[string]outcome{
		"captured": w.exchange(t, w.captured(t, at), "GET /"+field),
		"request":  w.exchange(t, explicit, "GET http://"+host+"/"+field),
		"tunnel":   w.exchange(t, explicit, "CONNECT "+host+field),
	}
}

// leadsTo are refused addresses of all kinds, and a part of the whole reason.
var leadsTo = map[string]struct{ address, reason string }{
	"private.example": {"10.0.0.2", "10.0.0.2:80, which is not a public address"},
	"link.example":    {"169.254.169.254", "169.254.169.254:80, which is not a public address"},
	"loop.example":    {"127.0.0.1", "127.0.0.1:80, which is not a public address"},
	"six.example":     {"fd00::7", "[fd00::7]:80, which is not a public address"},
	"host.example":    {"9.9.9.9", "9.9.9.9:80, an address of the host itself"},
	"denied.example":  {"8.8.4.4", "--deny 8.8.4.0/24 denies 8.8.4.4:80"},
	"nat.example":     {"64:ff9b::808:404", "--deny 8.8.4.0/24 denies [64:ff9b::808:404]:80"},
}

// length is a field that depends on the length of the name.
var length = regexp.MustCompile(`Content-Length: \d+`)

// A program inside learns neither an address to which a name leads, nor its kind. The event has both.
func TestRefusedAddressesLookAlikeInside(t *testing.T) {
	records := map[string][]string{}
	for name, x := range leadsTo {
		records[name] = []string{x.address}
	}
	w := newWorld(t, []string{"*.example", "8.0.0.0/8:80"}, []string{"8.8.4.0/24"}, records)
	explicit := w.explicit(t)
	first := map[string]string{}
	for name, x := range leadsTo {
		for way, got := range w.askInThreeWays(t, name+":80", w.address(t, name, 80), explicit) {
			answer := length.ReplaceAllString(strings.ReplaceAll(got.answer, name, "NAME"), "")
			if first[way] == "" {
				first[way] = answer
			}
			if answer != first[way] || !strings.HasPrefix(answer, "HTTP/1.1 403 ") || strings.Contains(answer, x.address) {
				t.Errorf("%s, %s: %q; another refusal is %q", name, way, answer, first[way])
			}
			if got.event.Decision != Denied || !strings.Contains(got.event.Reason, x.reason) {
				t.Errorf("%s, %s: event %+v; want %q", name, way, got.event, x.reason)
			}
		}
	}
}

// An address of the host inside the range of a rule is refused like an address without a rule.
func TestTheHostsAddressLooksLikeOneWithoutARule(t *testing.T) {
	w := newWorld(t, []string{"9.9.9.0/24:80"}, nil, nil)
	explicit := w.explicit(t)
	for address, reason := range map[string]string{"9.9.9.9:80": "an address of the host itself", "9.9.8.8:80": "is not allowed"} {
		want := address + " is not allowed; add --allow " + address
		for way, got := range w.askInThreeWays(t, address, netip.MustParseAddrPort(address), explicit) {
			if !strings.HasPrefix(got.answer, "HTTP/1.1 403 "+want+"\r\n") || !strings.HasSuffix(got.answer, "\r\n\r\nsandbox-runtime: "+want+"\n") {
				t.Errorf("%s, %s: %q; want %q", address, way, got.answer, want)
			}
			if !strings.Contains(got.event.Reason, reason) {
				t.Errorf("%s, %s: event %+v; want %q", address, way, got.event, reason)
			}
		}
	}
}

// The text about a server that is not reached has no address: package net names the server's, and sometimes the host's.
func TestAFailedConnectionNamesNoAddressInside(t *testing.T) {
	w := newWorld(t, []string{"closed.example"}, nil, map[string][]string{"closed.example": {public}})
	explicit := w.explicit(t)
	for way, got := range w.askInThreeWays(t, "closed.example:80", w.address(t, "closed.example", 80), explicit) {
		if !strings.HasPrefix(got.answer, "HTTP/1.1 502 connect to closed.example:80: connection refused\r\n") || strings.Contains(got.answer, public) {
			t.Errorf("%s: %q", way, got.answer)
		}
		if got.event.Decision != Failed || !strings.Contains(got.event.Reason, public) {
			t.Errorf("%s: event %+v", way, got.event)
		}
	}
}
