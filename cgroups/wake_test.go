package cgroups

import "testing"

func TestWakeMovesNothing(t *testing.T) {
	before := readString(t, "/proc/self/cgroup")
	for range 3 {
		Wake()
	}
	if after := readString(t, "/proc/self/cgroup"); after != before {
		t.Errorf("in %s, before in %s", after, before)
	}
}

func TestOwnFreezerIsAGroupWithoutLimits(t *testing.T) {
	for groups, want := range map[string]string{
		"4:memory:/a\n3:freezer:/b\n0::/c\n": mountRoot + "/freezer/b",
		"4:memory:/a\n":                      "",
		"0::/user.slice/x:y.scope\n":         mountRoot + "/user.slice/x:y.scope",
		"0::/../outside\n":                   "", // above the cgroup namespace's root
		"":                                   "",
	} {
		if got := ownFreezer(groups); got != want {
			t.Errorf("%q: %q, want %q", groups, got, want)
		}
	}
}
