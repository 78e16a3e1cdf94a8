package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// All sandboxes together have a limit of processes, and no huge page.
func TestAllSandboxesHaveALimitTogether(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "", spec.Config{})
	numbers, err := kernel.Sysctl("kernel.pid_max")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := kernel.Sysctl("kernel.threads-max")
	if err != nil {
		t.Fatal(err)
	}
	pids := min(numbers/kernel.NumbersOfATask, tasks) / 2
	host, err := cgroups.Probe()
	if err != nil {
		t.Fatal(err)
	}
	within, err := host.PidsWithin(record.CgroupParent, pids) // somebody may have set less
	if err != nil || within > pids {
		t.Fatalf("%d of %d, %v", within, pids, err)
	}
	found := 0
	for pattern, want := range map[string]string{
		"pids.max":                 fmt.Sprint(within),
		"hugetlb.*.max":            "0",
		"hugetlb.*.limit_in_bytes": "0",
	} {
		for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			files, err := filepath.Glob(dir + record.CgroupParent + "/" + pattern)
			if err != nil {
				t.Fatal(err)
			}
			found += len(files)
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil || strings.TrimSpace(string(text)) != want {
					t.Errorf("%s: %q, want %s: %v", file, text, want, err)
				}
			}
		}
	}
	if found == 0 {
		t.Error("the group of all sandboxes has no limit of processes")
	}
}
