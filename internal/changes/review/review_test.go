package review

import (
	"slices"
	"testing"
)

func TestPathsInAnAnswer(t *testing.T) {
	for answer, want := range map[string][]string{
		"": nil, "a  b/c ": {"a", "b/c"}, `"a b" c`: {"a b", "c"}, `"new\nline"`: {"new\nline"}, `it's`: {"it's"},
	} {
		if got, err := pathsIn(answer); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", answer, got, err, want)
		}
	}
	if got, err := pathsIn(`"a b`); err == nil {
		t.Errorf("without an end: %q", got)
	}
}
