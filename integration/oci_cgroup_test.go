package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// groupByController is the directory of the process's cgroup in the v1 hierarchy of
// controller, or in the v2 one where there is none such.
func groupByController(t testing.TB, pid int, controller string) string {
	t.Helper()
	path, err := findCgroup(pid, controller)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func findCgroup(pid int, controller string) (string, error) {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return "", err
	}
	lines, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	group := map[string]string{} // by controller, "" for v2
	for line := range strings.Lines(string(lines)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for c := range strings.SplitSeq(f[1], ",") {
			group[c] = f[2]
		}
	}
	for _, want := range []string{controller, ""} {
		for _, h := range hierarchies {
			path, there := group[want]
			if there && hasController(h.options, want) {
				return filepath.Join(h.mountPoint, path), nil
			}
		}
	}
	return "", fmt.Errorf("process %d is in no group of %q: %s", pid, controller, lines)
}

func hasController(options, controller string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == controller {
			return true
		}
	}
	return false
}

// pureV2 says whether containers have all their controllers in cgroup v2.
func pureV2(t testing.TB) bool {
	t.Helper()
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	return len(hierarchies) == 1 && hierarchies[0].kind == "cgroup2"
}

// makeSubCgroup makes the group "sub" below a container's, whose end removes it.
func makeSubCgroup(t testing.TB, group string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(group, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// freeze stops all processes of a container as another program would, by its
// cgroup, and waits until they have stopped.
func freeze(t testing.TB, pid int) {
	t.Helper()
	f := freezerOf(t, pid)
	// Nothing ends a process that is frozen for ever, not even the world's end.
	t.Cleanup(func() { _ = os.WriteFile(f.file, []byte(f.off), 0) })
	f.set(t, f.on, f.frozen)
}

func thaw(t testing.TB, pid int) {
	t.Helper()
	f := freezerOf(t, pid)
	f.set(t, f.off, f.thawed)
}

// A freezer is how a cgroup is frozen and what it then says.
type freezer struct {
	file, on, off        string // to be written
	seen, frozen, thawed string // to be read
}

func freezerOf(t testing.TB, pid int) freezer {
	t.Helper()
	group := groupByController(t, pid, "freezer")
	v1 := filepath.Join(group, "freezer.state")
	if unix.Access(v1, unix.F_OK) == nil {
		return freezer{v1, "FROZEN", "THAWED", v1, "FROZEN", "THAWED"}
	}
	return freezer{filepath.Join(group, "cgroup.freeze"), "1", "0", filepath.Join(group, "cgroup.events"), "frozen 1", "frozen 0"}
}

func (f freezer) set(t testing.TB, value, shown string) {
	t.Helper()
	if err := os.WriteFile(f.file, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, f.seen+" says "+shown, func() bool { return strings.Contains(content(t, f.seen), shown) })
}
