package oci

import (
	"runtime/debug"
	"testing"
)

func TestCommitComesFromTheBuild(t *testing.T) {
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: modified}}
	}
	for _, test := range []struct {
		module   string
		settings []debug.BuildSetting
		want     string
	}{
		{"(devel)", nil, ""},
		{"", nil, ""},
		{"(devel)", vcs("false"), "abc"},
		{"v0.1.1-0.20260102030405-0123456789ab", vcs("true"), "abc-dirty"},
		{"v0.1.1-0.20260102030405-0123456789ab", nil, "v0.1.1-0.20260102030405-0123456789ab"},
		{"v1.2.3", nil, "v1.2.3"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: test.module}, Settings: test.settings}
		if got := commitOf(info); got != test.want {
			t.Errorf("%q %v: %q, want %q", test.module, test.settings, got, test.want)
		}
	}
}
