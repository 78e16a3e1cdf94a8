package patch

import (
	"strconv"
	"strings"
	"testing"
)

func TestNamesAreQuotedAsInC(t *testing.T) {
	for name, want := range map[string]string{
		"a/b.c":          "a/b.c",
		"a b":            `"a b"`,
		"\x00\x01\x7f":   `"\000\001\177"`,
		"\a\b\t\n\v\f\r": `"\a\b\t\n\v\f\r"`,
		`a"\b`:           `"a\"\\b"`,
		"ü\xff":          `"\303\274\377"`,
		"a'b":            "a'b",
	} {
		if got := quote(name); got != want {
			t.Errorf("%q is quoted as %s and not %s", name, got, want)
		}
	}
}

// FuzzQuote holds that a name is what Go, whose escapes these are too, reads from
// the quotes, and that it takes one line.
func FuzzQuote(f *testing.F) {
	f.Add("a b\n\xff\"\\")
	f.Fuzz(func(t *testing.T, name string) {
		quoted := quote(name)
		if strings.ContainsFunc(quoted, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			t.Errorf("%q is quoted as %q", name, quoted)
		}
		got := quoted
		if strings.HasPrefix(quoted, `"`) {
			var err error
			if got, err = strconv.Unquote(quoted); err != nil {
				t.Fatalf("%q: %v", quoted, err)
			}
		}
		if got != name {
			t.Errorf("%q comes back as %q", name, got)
		}
	})
}
