package names

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

func table(t *testing.T, known []string, record func(string) error) *Table {
	t.Helper()
	table, err := New(known, record)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func pairOf(t *testing.T, table *Table, name string) Pair {
	t.Helper()
	p, err := table.Of(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestANameKeepsItsAddresses(t *testing.T) {
	n := table(t, nil, nil)
	want := Pair{netip.MustParseAddr("198.18.1.0"), netip.MustParseAddr("fd53:0:0:1::100")}
	if got := pairOf(t, n, "one.example"); got != want {
		t.Errorf("the first name has %v, want %v", got, want)
	}
	want = Pair{netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("fd53:0:0:1::101")}
	for range 2 {
		if got := pairOf(t, n, "two.example"); got != want {
			t.Errorf("the second name has %v, want %v", got, want)
		}
	}
	mapped := netip.AddrFrom16(want.V4.As16())
	for _, a := range []netip.Addr{want.V4, want.V6, mapped} {
		if name, ok := n.Name(a); !ok || name != "two.example" {
			t.Errorf("%v has the name %q", a, name)
		}
	}
	for _, a := range []string{
		"198.18.0.2", "198.18.0.255", "198.18.1.2", "198.19.1.0", "198.17.1.0", "127.0.0.1", "8.8.1.0", "0.0.1.0",
		"fd53::2", "fd53::100", "fd53:0:0:1::1", "fd53:0:0:1::102", "fd53:0:0:2::100", "fd53:0:0:1:0:0:1:100", "fd53:0:0:1::100%lo", "::",
	} {
		if name, ok := n.Name(netip.MustParseAddr(a)); ok {
			t.Errorf("%s has the name %q, want none", a, name)
		}
	}
	if name, ok := n.Name(netip.Addr{}); ok {
		t.Errorf("no address has the name %q", name)
	}
}

func TestATableHas10000Names(t *testing.T) {
	n := table(t, nil, nil)
	seen := map[netip.Addr]bool{}
	for i := range Max {
		name := fmt.Sprintf("n%d.example", i)
		p := pairOf(t, n, name)
		for _, a := range []netip.Addr{p.V4, p.V6} {
			if seen[a] {
				t.Fatalf("%v has two names", a)
			}
			seen[a] = true
			if got, ok := n.Name(a); !ok || got != name || !Reserved(a) {
				t.Fatalf("%v has the name %q, want %q; reserved %v", a, got, name, Reserved(a))
			}
		}
	}
	if p, err := n.Of("another.example"); !errors.Is(err, ErrFull) {
		t.Errorf("one name more has %v, error %v", p, err)
	}
	pairOf(t, n, "n0.example") // known names stay
}

// A killed worker is replaced by one that has the recorded names.
func TestNamesSurviveAWorker(t *testing.T) {
	var log []string
	record := func(name string) error {
		log = append(log, name)
		return nil
	}
	before := table(t, nil, record)
	a, b := pairOf(t, before, "a.example"), pairOf(t, before, "b.example")
	pairOf(t, before, "a.example")
	if !slices.Equal(log, []string{"a.example", "b.example"}) {
		t.Fatalf("recorded %q", log)
	}
	after := table(t, slices.Clone(log), record)
	if c := pairOf(t, after, "c.example"); c == a || c == b {
		t.Errorf("a new name has the address of another: %v", c)
	}
	if pairOf(t, after, "b.example") != b || pairOf(t, after, "a.example") != a {
		t.Error("a known name has another address")
	}
	if _, err := New([]string{"a", "a"}, nil); err == nil {
		t.Error("a name was restored twice")
	}
	if _, err := New(make([]string, Max+1), nil); !errors.Is(err, ErrFull) {
		t.Errorf("too many names were restored: %v", err)
	}
}

// A client must not learn an address that a new worker would give to another name.
func TestAnUnrecordedNameHasNoAddress(t *testing.T) {
	broken := errors.New("the parent is gone")
	n := table(t, nil, func(string) error { return broken })
	if p, err := n.Of("a.example"); !errors.Is(err, broken) {
		t.Errorf("%v, error %v", p, err)
	}
	if name, ok := n.Name(pair(first).V4); ok {
		t.Errorf("the address has the name %q", name)
	}
}

func TestReservedAddresses(t *testing.T) {
	for a, want := range map[string]bool{
		"198.18.0.2": true, "198.18.200.1": true, "198.19.255.255": true, "fd53::2": true, "fd53:0:0:1::7": true, "fd53::2%lo": true,
		"::ffff:198.18.1.1": true, "198.17.255.255": false, "198.20.0.0": false, "fd54::": false, "127.0.0.1": false,
	} {
		if got := Reserved(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: reserved is %v", a, got)
		}
	}
}

func TestGoroutinesShareATable(t *testing.T) {
	var recorded int
	n := table(t, nil, func(string) error { recorded++; return nil })
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 200 {
				name := fmt.Sprintf("n%d.example", (i*7+g)%200)
				p, err := n.Of(name)
				if got, ok := n.Name(p.V6); err != nil || !ok || got != name {
					t.Errorf("%s has %v, whose name is %q; error %v", name, p, got, err)
				}
			}
		})
	}
	all.Wait()
	if recorded != 200 {
		t.Errorf("%d names were recorded, want 200", recorded)
	}
}
