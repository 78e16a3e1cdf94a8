package streams

import "testing"

func TestANameIsVisible(t *testing.T) {
	for name, want := range map[string]string{
		"/a b/ä":      "/a b/ä",
		"a\nfake: b":  `"a\nfake: b"`,
		"\x1b[2J":     `"\x1b[2J"`,
		"a\u202eb":    `"a\u202eb"`,
		"not\xffUTF8": `"not\xffUTF8"`,
	} {
		if got := Visible(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
