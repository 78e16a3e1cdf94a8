package sandbox

import (
	"fmt"
	"strings"
	"testing"
)

// TestOmissionsAreBounded adds many paths of the longest length, and 100,000
// ordinary ones.
func TestOmissionsAreBounded(t *testing.T) {
	const count = 100000
	for _, test := range []struct {
		name string
		full bool
	}{
		{strings.Repeat("n", 4000), true},
		{"/home/ann/project/directory/", false},
	} {
		var list omissions
		for i := range count {
			list.add(fmt.Sprint(test.name, i), "an empty directory")
		}
		all := list.entries()
		last := all[len(all)-1]
		if full := last.Path == ""; full != test.full {
			t.Fatalf("%d entries, the last is %+v", len(all), last)
		}
		if !test.full {
			if len(all) != count {
				t.Errorf("%d of %d are listed", len(all), count)
			}
			continue
		}
		named := len(all) - 1
		if want := fmt.Sprintf("%d more; the list has no room for them", count-named); last.Reason != want || named*4000 > maxOmissions {
			t.Errorf("%d are named, then: %q, want %q", named, last.Reason, want)
		}
	}
}
