package launcher

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// On cgroup v1 no sandbox can have more processors than all together, and no total can be
// below the processors of a sandbox. The total here is one that no other test reaches.
func TestASandboxCannotHaveMoreThanAllTogether(t *testing.T) {
	l := newTestLauncher(t)
	sb := createUp(t, l, "", spec.Config{})
	host, err := l.host()
	if err != nil {
		t.Fatal(err)
	}
	if host.Mode == cgroups.V2 || !host.Limits.CPU.Enforced {
		return // the kernel takes any total: cgroup-v2.rst, "CPU Interface Files"
	}
	const total = 1000
	quotas, err := filepath.Glob("/sys/fs/cgroup/cpu*" + record.CgroupParent + "/cpu.cfs_quota_us")
	if err != nil || len(quotas) == 0 {
		t.Fatalf("%q, %v", quotas, err)
	}
	before, err := os.ReadFile(quotas[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(quotas[0], before, 0); err != nil {
			t.Error(err)
		}
	})
	if err := l.LimitTotals(0, total); err != nil {
		t.Fatal(err)
	}
	more := spec.Limits{CPUs: total + 1}
	_, created := createTied(t.Context(), l, spec.Config{Limits: more})
	for what, err := range map[string]error{"create": created, "update": sb.Update(t.Context(), more)} {
		var field *spec.FieldError
		if !errors.As(err, &field) || field.Field != "limits.cpus" || !strings.Contains(field.Problem, "than the 1000") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := sb.Update(t.Context(), spec.Limits{CPUs: total}); err != nil {
		t.Fatal(err)
	}
	if err := l.LimitTotals(0, total-1); err == nil || !strings.Contains(err.Error(), "set a higher total") {
		t.Errorf("a total below a sandbox's: %v", err)
	}
}

// cgroup v1 refuses a total of memory that is in use. The total here is below that of any
// process, so it is never set.
func TestATotalBelowTheMemoryInUseIsRefused(t *testing.T) {
	l := newTestLauncher(t)
	createUp(t, l, "", spec.Config{})
	host, err := l.host()
	if err != nil {
		t.Fatal(err)
	}
	if host.Mode == cgroups.V2 || !host.Limits.Memory.Enforced {
		t.Skip("needs the controllers on v1") // v2 sets the total, and kills
	}
	const total = 16 << 10
	if err := l.LimitTotals(total, 0); err == nil || !strings.Contains(err.Error(), "remove some, or set a higher total") {
		t.Errorf("%v", err)
		if err := l.LimitTotals(1<<50, 0); err != nil { // no limit
			t.Error(err)
		}
	}
}
