package cgroups

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func isNotWritable(err error) bool { return errors.Is(err, ErrNotWritable) }

func TestProbeFindsWhatIsMounted(t *testing.T) {
	h := realHost(t)
	for line := range strings.Lines(readString(t, "/proc/self/mountinfo")) {
		// proc_pid_mountinfo(5): …, mount point (5th), …, "-", type, source, options
		left, right, _ := strings.Cut(line, " - ")
		mountpoint, fields := strings.Fields(left)[4], strings.Fields(right)
		if !strings.HasPrefix(mountpoint, mountRoot) || !strings.HasPrefix(fields[0], "cgroup") {
			continue
		}
		if fields[0] == "cgroup2" {
			if u, ok := h.unified(); !ok || u.dir != mountpoint {
				t.Errorf("v2 hierarchy at %s not found", mountpoint)
			}
			continue
		}
		for _, option := range strings.Split(fields[2], ",") {
			if slices.Contains([]string{"memory", "cpu", "cpuacct", "cpuset", "pids", "blkio", "freezer", "devices"}, option) &&
				!slices.Contains(h.Controllers, Controller{option, mountpoint}) {
				t.Errorf("%s at %s not among %v", option, mountpoint, h.Controllers)
			}
		}
	}
	for _, tree := range h.trees {
		magic, err := fsMagic(tree.dir)
		if err != nil || tree.v2 != (magic == unix.CGROUP2_SUPER_MAGIC) {
			t.Errorf("%s: v2 %v, type %#x, %v", tree.dir, tree.v2, magic, err)
		}
	}
	t.Logf("mode %s, limits %+v", h.Mode, h.Limits)
}

func TestProbeWithoutCgroupsSaysWhatToDo(t *testing.T) {
	_, err := probe(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "no cgroup file system") || !strings.Contains(err.Error(), "mount -t cgroup2") {
		t.Errorf("got %v", err)
	}
}

// inMounts runs the in-namespace program with mounts of its own.
func inMounts(t *testing.T, change, arg, group string) verdict {
	t.Helper()
	p := newProgram("in-namespace", change, arg, group)
	p.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // makes / private, too
	p.start(t)
	p.release(t)
	var v verdict
	if err := json.Unmarshal([]byte(p.line(t)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestMissingControllerIsReportedNotAnError(t *testing.T) {
	h := realHost(t)
	pids, ok := h.v1("pids")
	if !ok {
		t.Skip("the pids controller is not on v1: nothing to unmount")
	}
	group := testPrefix + "without-pids"
	t.Cleanup(func() { scrub(t, h, group) })
	v := inMounts(t, "umount", pids.dir, group)
	if v.Limits.Pids.Enforced || !strings.Contains(v.Limits.Pids.Reason, "pids controller is not mounted") {
		t.Errorf("pids: %+v", v.Limits.Pids)
	}
	if v.Limits.Memory != h.Limits.Memory {
		t.Errorf("memory: %+v, was %+v", v.Limits.Memory, h.Limits.Memory)
	}
	if v.Parent != "" {
		t.Errorf("EnsureParent: %s", v.Parent)
	}
}

func TestReadOnlyMountIsNoWritableCgroup(t *testing.T) {
	h := realHost(t)
	group := testPrefix + "read-only"
	t.Cleanup(func() { scrub(t, h, group) })
	v := inMounts(t, "read-only", "", group)
	if !v.NotWritable || !strings.Contains(v.Parent, "no writable cgroup") || !strings.Contains(v.Parent, "read-write") {
		t.Errorf("EnsureParent: %q", v.Parent)
	}
	for name, l := range map[string]Limit{"memory": v.Limits.Memory, "cpu": v.Limits.CPU, "pids": v.Limits.Pids, "io": v.Limits.IO} {
		if l.Enforced || l.Reason == "" {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func TestOrdinaryUserIsToldToRunAsRoot(t *testing.T) {
	h := realHost(t)
	group := testPrefix + "ordinary"
	t.Cleanup(func() { scrub(t, h, group) })
	v := inMounts(t, "uid", "65534", group)
	if !v.NotWritable || !strings.Contains(v.Parent, "no writable cgroup") || !strings.Contains(v.Parent, "run as root") {
		t.Errorf("EnsureParent: %q", v.Parent)
	}
	if v.Limits.Memory.Enforced {
		t.Errorf("memory: %+v", v.Limits.Memory)
	}
}

func TestAbsenceIsExplained(t *testing.T) {
	const table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n" +
		"memory\t0\t1\t0\nblkio\t7\t3\t1\npids\t0\t1\t1\n"
	for _, c := range []struct {
		controller string
		mode       Mode
		want       string
	}{
		{"memory", V2, "disabled at boot: take cgroup_disable=memory off"},
		{"memory", V1, "disabled at boot"},
		{"io", V2, "on a v1 hierarchy"},
		{"pids", V2, "not delegated"},
		{"pids", V1, "not mounted: mount -t cgroup -o pids none /sys/fs/cgroup/pids"},
		{"cpu", V2, "does not offer"},
	} {
		if got := absenceFrom(table, c.controller, c.mode); !strings.Contains(got, c.want) {
			t.Errorf("%s on %s: %q, want %q", c.controller, c.mode, got, c.want)
		}
	}
}

func TestControllerOnTheV2SideOfAHybridHostIsNotEnforced(t *testing.T) {
	h := &Host{Mode: Hybrid, trees: []tree{{dir: t.TempDir(), v2: true, controllers: []string{"memory"}}}}
	if l := h.hostLimits().Memory; l.Enforced || !strings.Contains(l.Reason, "hybrid") {
		t.Errorf("%+v", l)
	}
}

func TestBadPathsAreRefused(t *testing.T) {
	h := &Host{Mode: V1}
	for _, path := range []string{
		"", "/", "relative", "/a/../b", "/..", "/a/./b", "/a//b", "/a/", "//a", "/a\nb", "/a\x00b", "/" + strings.Repeat("a", 4096),
	} {
		if _, err := h.Open(path); err == nil {
			t.Errorf("Open(%q) is accepted", path)
		}
		if _, err := h.EnsureParent(path, 0); err == nil {
			t.Errorf("EnsureParent(%q) is accepted", path)
		}
		if _, err := h.Children(path); err == nil {
			t.Errorf("Children(%q) is accepted", path)
		}
		if err := h.removeParent(path); err == nil {
			t.Errorf("removeParent(%q) is accepted", path)
		}
	}
	if _, err := h.Open("/sandbox-runtime/a..b"); err != nil {
		t.Errorf("two dots in a name: %v", err)
	}
}
