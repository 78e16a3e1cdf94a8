package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

func TestVersionIsWhatDaemonsParse(t *testing.T) {
	h := newHost(t)
	got := h.must("--version").stdout
	want := regexp.MustCompile(`^sandbox-runtime version \d+\.\d+\.\d+\n(commit: [0-9a-f]+(-dirty)?\n)?spec: \d+\.\d+\.\d+\ngo: go\S+\nlibseccomp: \d+\.\d+\.\d+\n$`)
	if !want.MatchString(got) {
		t.Errorf("%q", got)
	}
}

func TestFeaturesAreTheBinarys(t *testing.T) {
	h := newHost(t)
	var f features.Features
	if err := json.Unmarshal([]byte(h.must("features").stdout), &f); err != nil {
		t.Fatal(err)
	}
	if f.OCIVersionMin != "1.0.0" || f.OCIVersionMax != "1.3.0" {
		t.Errorf("versions %s to %s", f.OCIVersionMin, f.OCIVersionMax)
	}
	if f.Linux == nil || f.Linux.Seccomp == nil || !*f.Linux.Seccomp.Enabled || !*f.Linux.Cgroup.V1 || !*f.Linux.MountExtensions.IDMap.Enabled {
		t.Errorf("%+v", f.Linux)
	}
	if !slices.Contains(f.Hooks, "createRuntime") || !slices.Contains(f.MountOptions, "rbind") {
		t.Errorf("hooks %v, mount options %v", f.Hooks, f.MountOptions)
	}
	if !strings.Contains(h.must("--version").stdout, " version "+f.Annotations["io.github.sandbox-runtime.version"]+"\n") || f.Annotations["io.github.seccomp.libseccomp.version"] == "" {
		t.Errorf("annotations %v", f.Annotations)
	}
}

// The commands of runc that daemons ask for, and nothing promised that is not
// there.
func TestHelpListsTheCommands(t *testing.T) {
	h := newHost(t)
	help := h.must("--help").stdout
	for _, want := range []string{"create", "start", "run", "state", "kill", "delete", "exec", "list", "features", "spec"} {
		if !regexp.MustCompile(`(?m)^\s+` + want + `\s`).MatchString(help) {
			t.Errorf("help lacks %s", want)
		}
	}
	h.must("create", "--help")
}
