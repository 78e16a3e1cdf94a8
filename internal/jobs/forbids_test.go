package jobs

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestForbiddenWorkIsExplained(t *testing.T) {
	for _, c := range []struct {
		seccomp string
		args    []string
		want    string
	}{
		{"default", []string{"/usr/bin/strace", "ls"}, "profile default forbids programs to trace others (allow it with --seccomp debug)"},
		{"strict", []string{"/bin/sh", "-c", " gdb -p 1; true"}, "profile strict"},
		{"debug", []string{"strace", "ls"}, ""},
		{"default", []string{"mount", "-t", "tmpfs", "x", "/mnt"}, "--bind"},
		{"debug", []string{"perf", "stat", "ls"}, "no built-in profile"},
		{"/etc/profile.json", []string{"perf", "stat", "ls"}, ""},
		{"default", []string{"make"}, ""},
		{"default", []string{"sh", "-c", " "}, ""},
	} {
		got := forbids(spec.Config{Seccomp: c.seccomp}, c.args)
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s with %q: %q, want %q", c.args, c.seccomp, got, c.want)
		}
	}
}
