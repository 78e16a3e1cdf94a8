package rules

import "testing"

func TestARuleCoversNarrowerRules(t *testing.T) {
	for _, c := range []struct {
		wide, narrow string
		want         bool
	}{
		{"a.example", "a.example", true},
		{"a.example", "A.Example", true},
		{"a.example", "b.example", false},
		{"a.example", "*.a.example", false},
		{"*.a.example", "a.example", false},
		{"*.a.example", "x.y.a.example", true},
		{"*.a.example", "*.a.example", true},
		{"*.a.example", "*.b.a.example", true},
		{"*.a.example", "*.example", false},
		{"*.a.example", "xa.example", false},
		{"a.example", "a.example:443", true},
		{"a.example:443", "a.example", false},
		{"a.example:1-1000", "a.example", true},
		{"a.example", "a.example:22", false},
		{"a.example", "a.example/docs", true},
		{"a.example/docs", "a.example", false},
		{"a.example/docs", "a.example/docs/a", true},
		{"a.example/docs", "a.example/docs2", false},
		{"GET,HEAD a.example", "GET a.example", true},
		{"GET a.example", "GET,HEAD a.example", false},
		{"GET a.example", "a.example/docs", false},
		{"a.example:80", "GET a.example", true},
		{"10.0.0.0/8", "10.1.0.0/16", true},
		{"10.1.0.0/16", "10.0.0.0/8", false},
		{"10.0.0.0/8", "10.1.2.3", false},
		{"10.1.2.3", "10.1.2.3", true},
		{"10.1.2.3:5432", "10.1.2.3", false},
		{"10.0.0.0/8", "a.example", false},
		{"a.example", "10.1.2.3", false},
		{"2001:db8::/32", "2001:db8:1::/48", true},
	} {
		wide, err := ParseAll([]string{c.wide})
		if err != nil {
			t.Fatal(err)
		}
		narrow, err := ParseAll([]string{c.narrow})
		if err != nil {
			t.Fatal(err)
		}
		if got := wide[0].Covers(narrow[0]); got != c.want {
			t.Errorf("%s covers %s: %v", c.wide, c.narrow, got)
		}
	}
}
