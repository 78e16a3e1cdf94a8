package proxy

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

// The client sees the error of a lookup. It must not have an address of the host or of its name servers.
func TestAFailedLookupNamesNoAddressOfTheHost(t *testing.T) {
	list, err := rules.New([]string{"a.example"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &Sandbox{Rules: fixedRules{list}, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", "127.0.0.1:9") // no server is there
	}}}
	_, err = b.dialName(t.Context(), "a.example", 80)
	if err == nil || !strings.HasPrefix(err.Error(), "look up a.example: ") || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("the error is %v", err)
	}
}

// A lookup above the bound of a sandbox tells this reason, and not one about the host's name servers.
func TestALookupAboveTheBoundTellsTheReason(t *testing.T) {
	b := &Sandbox{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, nameserver.ErrTooMany
	}}}
	_, err := b.dialName(t.Context(), "a.example", 80)
	if want := "look up a.example: " + nameserver.ErrTooMany.Error(); err == nil || err.Error() != want {
		t.Errorf("the error is %v; want %s", err, want)
	}
}
