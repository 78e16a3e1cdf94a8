package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The tests of v2_*_test.go exceed limits where cgroup v2 has them. They run
// in the guest (vm/) and on hosts like it.

// controllersOnV2 says that this host has its controllers elsewhere.
func controllersOnV2() string {
	offered, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	for _, c := range []string{"cpu", "io", "memory", "pids"} {
		if err != nil || !slices.Contains(strings.Fields(string(offered)), c) {
			return "needs the controllers on v2"
		}
	}
	return ""
}

// A v2group is the directory of a cgroup.
type v2group struct {
	t   testing.TB
	dir string
}

// v2groupOf is the group of a process.
func v2groupOf(t testing.TB, pid int) v2group {
	t.Helper()
	path, ok := strings.CutPrefix(content(t, fmt.Sprintf("/proc/%d/cgroup", pid)), "0::")
	if !ok {
		t.Fatalf("/proc/%d/cgroup has more than the v2 hierarchy", pid)
	}
	return v2group{t, filepath.Join("/sys/fs/cgroup", strings.TrimSpace(path))}
}

func (g v2group) read(file string) string {
	g.t.Helper()
	return strings.TrimSpace(content(g.t, filepath.Join(g.dir, file)))
}

// count is the number in a file, or at a key of it.
func (g v2group) count(file string, key ...string) int {
	g.t.Helper()
	text := g.read(file)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(key) == 1 && len(f) == 2 && f[0] == key[0] {
			text = f[1]
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		g.t.Fatalf("%s %q: %v", file, key, err)
	}
	return n
}

// tell puts the files' values into the log, which shows that a limit was met.
func (g v2group) tell(files ...string) {
	g.t.Helper()
	for _, f := range files {
		g.t.Logf("%s: %s", f, strings.ReplaceAll(g.read(f), "\n", ", "))
	}
}

// oursOnV2 is our runtime on a host whose controllers are on cgroup v2, on which
// the test leaves nothing.
func oursOnV2(t *testing.T) *ociRuntime {
	t.Helper()
	need(t, controllersOnV2())
	leavesNothing(t)
	return ours(t)
}

// v2container starts the container "c" with the resources, to exec in, and
// returns its cgroup.
func v2container(t *testing.T, r *ociRuntime, change func(*specs.Spec)) v2group {
	t.Helper()
	b := newBundle(t, []string{"sleep", "1000"}, func(s *specs.Spec) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		change(s)
	})
	pid := r.create(b, "c")
	r.run("start", "c")
	return v2groupOf(t, pid)
}

// v2disk returns the disk below dir, as its limits name it.
func v2disk(t *testing.T, dir string) (major, minor int64) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	disk := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if !exists("/sys/dev/block/"+disk) || exists("/sys/dev/block/"+disk+"/partition") {
		need(t, "the files are on no whole disk")
	}
	return int64(unix.Major(st.Dev)), int64(unix.Minor(st.Dev))
}
