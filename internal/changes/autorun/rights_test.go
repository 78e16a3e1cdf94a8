package autorun

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestRights(t *testing.T) {
	file := func(mode uint32) spec.Change {
		return spec.Change{Kind: spec.Modified, Type: spec.TypeFile, Mode: mode}
	}
	before := func(mode uint32) *spec.Change { c := file(mode); return &c }
	with := func(c spec.Change, name string) spec.Change {
		c.Xattrs = map[string][]byte{name: nil}
		return c
	}
	for _, test := range []struct {
		name   string
		c      spec.Change
		before *spec.Change
		want   string
	}{
		{"nothing", file(0o644), before(0o644), ""},
		{"nothing of a new file", file(0o644), nil, ""},
		{"a program", file(0o755), before(0o755), ""},
		{"a new program", file(0o755), nil, "it is a program now"},
		{"a file that is a program now", file(0o744), before(0o644), "it is a program now"},
		{"a program for others, too", file(0o711), before(0o700), ""},
		{"a set-user-ID bit", file(0o4755), before(0o755), "it has a set-user-ID or set-group-ID bit, which apply holds back"},
		{"a set-group-ID bit", file(0o2755), before(0o755), "it has a set-user-ID or set-group-ID bit, which apply holds back"},
		{"a set-group-ID bit of a directory", spec.Change{Kind: spec.Created, Type: spec.TypeDirectory, Mode: 0o2755}, nil, ""},
		{"capabilities", with(file(0o755), capability), before(0o755), "it has file capabilities, which apply holds back"},
		{"a mode that is wider", file(0o644), before(0o600), "others can do more with it: mode 0644, was 0600"},
		{"a mode that is narrower", file(0o600), before(0o644), ""},
		{"a new file that everybody can write to", file(0o666), nil, "everybody can write to it: mode 0666"},
		{"a directory like /tmp", spec.Change{Kind: spec.Created, Type: spec.TypeDirectory, Mode: 0o1777}, nil, ""},
		{"a link", spec.Change{Kind: spec.Created, Type: spec.TypeSymlink, Mode: 0o777}, nil, ""},
		{"a list", with(file(0o644), "system.posix_acl_access"), before(0o644), "it has an access control list"},
		{"an owner", spec.Change{Kind: spec.Created, Type: spec.TypeFile, UID: 7, GID: 8}, nil, "it belongs to 7:8, not to 0:0"},
		{"a deleted one", spec.Change{Kind: spec.Deleted, Type: spec.TypeFile, Mode: 0o4777}, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(Rights(test.c, test.before, 0, 0), "; "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
