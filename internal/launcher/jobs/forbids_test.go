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
		{"default", []string{"chromium", "--headless", "x.html"}, "start it with --no-sandbox: the walls around it stay"},
		{"default", []string{"chromium", "--headless", "--no-sandbox", "x.html"}, ""},
		{"debug", []string{"podman", "run", "alpine"}, "makes no namespaces"},
		{"strict", []string{"sh", "-c", "unshare -r true"}, "makes no namespaces"},
		{"default", []string{"fio", "--ioengine=io_uring", "job"}, "io_uring (choose another engine"},
		{"/etc/profile.json", []string{"bwrap", "true"}, ""},
		{"default", []string{"sh", "-c", " "}, ""},
		{"default", []string{"chmod", "g+s", "d"}, ""},
		{"default, workspace", []string{"chmod", "-R", "g+s", "d"}, "set-group-ID bit can be set (use --overlay in place"},
		{"default, workspace", []string{"chmod", "02775", "d"}, "set-group-ID"},
		{"strict, workspace", []string{"chmod", "u=rwx,g+s", "d"}, "set-group-ID"},
		{"strict, workspace", []string{"chmod", "ug=rwxs", "d"}, "set-group-ID"},
		{"default, workspace", []string{"chmod", "u+s", "d"}, ""},
		{"default, workspace", []string{"chmod", "0755", "2775"}, ""}, // the name of a file
		{"default, workspace", []string{"sh", "-c", "git init --shared=group ."}, "set-group-ID"},
		{"default, workspace", []string{"git", "init", "."}, ""},
		{"/etc/profile.json, workspace", []string{"chmod", "g+s", "d"}, ""},
	} {
		config := spec.Config{}
		var shared bool
		if config.Seccomp, shared = strings.CutSuffix(c.seccomp, ", workspace"); shared {
			config.Workspace = "/srv/project"
		}
		got := forbids(config, c.args)
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s with %q: %q, want %q", c.args, c.seccomp, got, c.want)
		}
	}
}
