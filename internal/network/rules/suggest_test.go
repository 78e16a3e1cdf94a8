package rules

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestSuggestedRulesAllowTheUsesAndNoMore(t *testing.T) {
	uses := []spec.NetworkEvent{
		{Name: "pypi.org", Address: "8.8.8.8", Port: 443},
		{Name: "pypi.org", Address: "8.8.4.4", Port: 80},
		{Name: "pypi.org", Port: 443},
		{Name: "files.pypi.org", Port: 8080},
		{Name: "db.example", Address: "10.0.0.1", Port: 5432},
		{Name: "git.example", Port: 22},
		{Name: "git.example", Port: 443},
		{Name: "xn--bcher-kva.example", Port: 80},
		{Name: "many.example", Port: 8001},
		{Name: "many.example", Port: 443},
		{Name: "many.example", Port: 8003},
		{Name: "many.example", Port: 8000},
		{Name: "many.example", Port: 8002},
		{Name: "many.example", Port: 8005},
		{Name: "many.example", Port: 80},
		{Name: "edge.example", Port: 65535},
		{Name: "edge.example", Port: 1},
		{Address: "192.0.2.1", Port: 443},
		{Address: "192.0.2.1", Port: 7},
		{Address: "2001:db8::1", Port: 7},
		{Address: "2001:db8::2", Port: 80},
		{Address: "2001:db8::2", Port: 443},
	}
	hostile := []spec.NetworkEvent{
		{Name: "a.example ; reason", Port: 80},
		{Name: "GET a.example", Port: 80},
		{Name: "@pypi", Port: 80},
		{Name: "*.example", Port: 80},
		{Name: "A.example", Port: 80},
		{Name: "a.example.", Port: 80},
		{Name: "0x7f.1", Address: "10.0.0.9", Port: 80},
		{Name: "query.example"},
		{Port: 80},
		{Address: "127.0.0.1", Port: 80},
		{Address: "198.18.1.0", Port: 80},
		{Address: "::ffff:10.0.0.1", Port: 80},
		{Address: "fe80::1%lo", Port: 80},
	}
	want := []string{
		"10.0.0.1:5432", "192.0.2.1:443", "192.0.2.1:7", "2001:db8::2", "[2001:db8::1]:7", "db.example:5432",
		"edge.example:1", "edge.example:65535", "files.pypi.org:8080", "git.example:22", "git.example:443",
		"many.example", "many.example:8000-8003", "many.example:8005", "pypi.org", "xn--bcher-kva.example:80",
	}
	events := slices.Concat(uses, hostile)
	for i := range events {
		events[i].Decision = spec.NetworkAllowed
	}
	got := Suggest(events)
	if !slices.Equal(got, want) {
		t.Fatalf("%q; want %q", got, want)
	}
	l, err := New(got, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range uses {
		if u.Name != "" && !l.Connect(u.Name, u.Port).Allowed || u.Name == "" && !l.Address(netip.MustParseAddr(u.Address), u.Port).Allowed {
			t.Errorf("%+v is not allowed", u)
		}
	}
	for _, u := range []spec.NetworkEvent{{Name: "files.pypi.org", Port: 443}, {Name: "db.example", Port: 80}, {Name: "git.example", Port: 80}, {Name: "many.example", Port: 8004}} {
		if l.Connect(u.Name, u.Port).Allowed {
			t.Errorf("the rules allow more than the uses: %+v", u)
		}
	}
}

func TestAllowedEventsSuggestRules(t *testing.T) {
	got := Suggest([]spec.NetworkEvent{
		{Name: "good.example", Address: "8.8.8.8", Port: 443, Decision: spec.NetworkAllowed},
		{Name: "good.example", Address: "8.8.8.8", Port: 22, Decision: spec.NetworkAllowed},
		{Name: "bad.example", Port: 80, Decision: spec.NetworkDenied},
		{Name: "gone.example", Port: 80, Decision: spec.NetworkFailed},
		{Address: "10.0.0.1", Port: 7, Decision: spec.NetworkAllowed},
		{Address: "; rm -r /", Port: 7, Decision: spec.NetworkAllowed},
	})
	if want := []string{"10.0.0.1:7", "good.example:22", "good.example:443"}; !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}
