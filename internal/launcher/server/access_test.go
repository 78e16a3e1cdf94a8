package server

import (
	"io/fs"
	"strings"
	"testing"
)

func TestAccessOfASocket(t *testing.T) {
	for _, test := range []struct {
		mode, group string
		wantMode    fs.FileMode
		wantGroup   int
		wantError   string
	}{
		{"", "", 0o600, SameGroup, ""},
		{"", "root", 0o660, 0, ""},
		{"", "4711", 0o660, 4711, ""},
		{"0666", "", 0o666, SameGroup, ""},
		{"0640", "0", 0o640, 0, ""},
		{"1777", "", 0, 0, "--mode 1777"},
		{"rw", "", 0, 0, "--mode rw"},
		{"", "no-such-group", 0, 0, "groupadd --system no-such-group"},
		{"", "4294967295", 0, 0, "--group"}, // which would leave the group as it is
	} {
		mode, group, err := Access(test.mode, test.group)
		if test.wantError != "" {
			if err == nil || !strings.Contains(err.Error(), test.wantError) {
				t.Errorf("mode %q, group %q: %v, want %s", test.mode, test.group, err, test.wantError)
			}
			continue
		}
		if err != nil || mode != test.wantMode || group != test.wantGroup {
			t.Errorf("mode %q, group %q: %v, %d, %v", test.mode, test.group, mode, group, err)
		}
	}
}
