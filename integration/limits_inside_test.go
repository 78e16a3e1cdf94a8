package integration

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// ownLimits prints the limits of memory and processor time of the process's own cgroup, found
// as language runtimes do: by /proc/self/cgroup.
const ownLimits = `top=/sys/fs/cgroup
path() { sed -n "s/^[0-9]*:\([^:]*,\)*$1\(,[^:]*\)*://p" /proc/self/cgroup; }
if test -e $top/cgroup.procs; then
	own=$top$(path)
	echo $(cat $own/memory.max $own/cpu.max)
else
	cpu=$top/cpu$(path cpu)
	echo $(cat $top/memory$(path memory)/memory.limit_in_bytes $cpu/cpu.cfs_quota_us $cpu/cpu.cfs_period_us)
fi
`

func TestLimitsAreVisibleInside(t *testing.T)   { limitsAreVisible(t) }
func TestV2LimitsAreVisibleInside(t *testing.T) { need(t, controllersOnV2()); limitsAreVisible(t) }

func limitsAreVisible(t *testing.T) {
	t.Helper()
	s := newSandboxes(t)
	got := s.do("--memory", "96m", "--cpus", "0.5", "--", "sh", "-c", ownLimits)
	if got.stdout != "100663296 50000 100000\n" || got.code != 0 {
		t.Errorf("%+v", got)
	}
	// The limits of a command that runs follow an update.
	s.up("box", "--memory", "96m", "--cpus", "0.5")
	cmd := s.command("exec", "-i", "box", "sh", "-c", "echo begun; read line; "+ownLimits)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if _, err := io.ReadFull(out, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	if got := run(t, s.command("update", "--memory", "128m", "box")); got.code != 0 {
		t.Fatalf("update: %+v", got)
	}
	fmt.Fprintln(in, "go on")
	told, err := io.ReadAll(out)
	if want := "134217728 50000 100000\n"; err != nil || string(told) != want {
		t.Errorf("after an update a running command sees %q (%v), not %q", told, err, want)
	}
	if got := s.sh("box", ownLimits); got != "134217728 50000 100000\n" {
		t.Errorf("after an update a new command sees %q", got)
	}
}

// The sandbox sees its own cgroups, and of the host neither other groups nor processes.
func TestCgroupsInsideShowNothingOfOthers(t *testing.T) {
	s := newSandboxes(t)
	s.up("other")
	for _, flags := range [][]string{{}, {"--overlay", "/"}, {"--rootfs", sharedAttackRoot(t)}} {
		got := s.do(append(flags, "--", "sh", "-c", `
			find /sys | grep -v -e '^/sys$' -e '^/sys/fs$' -e '^/sys/fs/cgroup'
			find /sys/fs/cgroup -type d | grep -e sandbox-runtime -e @ -e other
			grep cgroup /proc/self/mountinfo | grep -v -e ' / /sys/fs/cgroup[a-z,/]* ro,nosuid,nodev,noexec,relatime - '
			find /sys/fs/cgroup -name release_agent
			for list in $(find /sys/fs/cgroup -name tasks -o -name cgroup.procs); do
				while read pid; do test $pid = 0 || test -d /proc/$pid || echo "$list has $pid"; done <$list
			done
			cd /sys/fs/cgroup && for f in $(find . -type f); do (echo 1 > $f) 2>/dev/null && echo wrote $f; done
			mkdir x */x 2>/dev/null && echo made a group
			find /sys/fs/cgroup -name cgroup.procs | head -n 1 | grep -o cgroup.procs`)...)
		if got.stdout != "cgroup.procs\n" {
			t.Errorf("%v: %q, %q", flags, got.stdout, got.stderr)
		}
	}
}

func TestJavaSeesLimits(t *testing.T) {
	need(t, onPath("java"))
	s := newSandboxes(t)
	got := s.do("--memory", "256m", "--cpus", "1", "--", "java", "-XX:+PrintFlagsFinal", "-Xlog:os+container=trace", "-version")
	heap := regexp.MustCompile(`\bMaxHeapSize += ([0-9]+) `).FindStringSubmatch(got.stdout)
	if heap == nil {
		t.Fatalf("%+v", got)
	}
	if n, err := strconv.Atoi(heap[1]); err != nil || n > 128<<20 {
		t.Errorf("heap of %s bytes under 256 MiB", heap[1])
	}
	if !strings.Contains(got.stdout, "active_processor_count: 1\n") {
		t.Errorf("more than one processor: %s", got.stdout)
	}
}

func TestNodeSeesTheMemoryLimit(t *testing.T) {
	need(t, onPath("node"))
	s := newSandboxes(t)
	got := s.do("--memory", "256m", "--", "node", "-p", "require('v8').getHeapStatistics().heap_size_limit")
	if n, err := strconv.ParseFloat(strings.TrimSpace(got.stdout), 64); err != nil || n > 300<<20 {
		t.Errorf("heap limit under 256 MiB: %+v", got)
	}
}

func onPath(name string) string {
	if _, err := exec.LookPath(name); err != nil {
		return name + " is not on PATH"
	}
	return ""
}

// stageProcessors has the test binary print its GOMAXPROCS.
const stageProcessors = "processors"

// Go rounds the limit up to 2 processors, so the test tells more on a machine with more.
func TestGoSeesTheProcessorLimit(t *testing.T) {
	s := newSandboxes(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	got := s.do("--cpus", "1", "--env", stageVariable+"="+stageProcessors, "--bind", self+":/mnt/"+filepath.Base(self), "--", "/mnt/"+filepath.Base(self))
	if want := fmt.Sprintln(min(runtime.NumCPU(), 2)); got.stdout != want {
		t.Errorf("GOMAXPROCS %+v, not %s", got, want)
	}
	t.Logf("%d processors, GOMAXPROCS with 1 is %s", runtime.NumCPU(), got.stdout)
}
