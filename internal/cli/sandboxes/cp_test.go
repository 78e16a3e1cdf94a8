package sandboxes

import "testing"

func TestPlacesOfCp(t *testing.T) {
	for arg, want := range map[string]place{
		"box:/a:b": {"box", "/a:b"},
		"box:":     {"box", ""},
		"./box:a":  {"", "./box:a"},
		"/x/box:a": {"", "/x/box:a"},
		":a":       {"", ":a"},
		"a":        {"", "a"},
		"-":        {"", "-"},
	} {
		if got := placeOf(arg); got != want {
			t.Errorf("%q: %+v, want %+v", arg, got, want)
		}
	}
}
