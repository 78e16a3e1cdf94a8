package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// The tests of shared quotas have one sandbox take all it can get of a thing that
// the kernel counts per user or per system. A second sandbox, and root on the host,
// still get theirs. The table of these quotas is in SECURITY.md.

// hoardProgram is testdata/hoard.c, made once for all tests.
var hoardProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hoard")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "hoard")
	out, err := exec.Command("cc", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/hoard.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile testdata/hoard.c: %w: %s", err, out)
	}
	return path, os.Chmod(dir, 0o755)
})

// A hoard is one thing that a sandbox takes all of.
type hoard struct {
	*sandboxes
	program, kind string
}

func newHoard(t *testing.T, kind string) *hoard {
	t.Helper()
	s := newSandboxes(t)
	program, err := hoardProgram()
	if err != nil {
		t.Fatal(err)
	}
	return &hoard{sandboxes: s, program: program, kind: kind}
}

// takeAll starts a sandbox that takes all it can get, and keeps it until the
// sandbox is interrupted.
func (h *hoard) takeAll() *testProcess {
	h.t.Helper()
	r := start(h.t, h.command("do", "--bind", h.program+":/hoard", "--", "/hoard", h.kind, "all"))
	r.prints("taken\n")
	h.t.Logf("one sandbox took %s", r.stderr())
	return r
}

// othersTake has a second sandbox, and root on the host, take some.
func (h *hoard) othersTake(n int) {
	h.t.Helper()
	count := strconv.Itoa(n)
	if got := h.do("--bind", h.program+":/hoard", "--", "/hoard", h.kind, count); got.code != 0 {
		h.t.Errorf("a second sandbox: %+v", got)
	}
	cmd := exec.Command(h.program, h.kind, count)
	cmd.Dir = h.t.TempDir()
	if got := run(h.t, cmd); got.code != 0 {
		h.t.Errorf("root on the host: %+v", got)
	}
}

// What the kernel counts per user is not counted for root, nor for other sandboxes.
func TestCountsPerUserAreEachSandboxs(t *testing.T) {
	for kind, n := range map[string]int{"instances": 8, "watches": 8, "signals": 8, "queues": 4} {
		t.Run(kind, func(t *testing.T) {
			h := newHoard(t, kind)
			r := h.takeAll()
			h.othersTake(n)
			interrupt(t, r)
		})
	}
}

// Without --nofile a process opens 4,096 files, and a command queues 4,096 signals.
func TestOpenFilesAreBounded(t *testing.T) {
	s := newSandboxes(t)
	script := "ulimit -n; ulimit -Hn; grep -E 'pending|msgqueue' /proc/self/limits | tr -s ' '"
	want := "4096\n4096\nMax pending signals 4096 4096 signals \nMax msgqueue size 819200 819200 bytes \n"
	if got := s.do("--", "sh", "-c", script); got.stdout != want {
		t.Errorf("got %+v, want %q", got, want)
	}
	for limit, want := range map[string]string{"5000": "5000\n5000\n", "15": ""} {
		if got := s.do("--nofile", limit, "--", "sh", "-c", "ulimit -n; ulimit -Hn"); got.stdout != want {
			t.Errorf("--nofile %s: %+v, want %q", limit, got, want)
		}
	}
}

// Bytes that nobody reads are held to the sandbox's memory, also on cgroup v1, where
// they are a budget of their own, and in a leaf that is used again.
func TestSocketBuffersAreBounded(t *testing.T) {
	h := newHoard(t, "bytes")
	hoards := func() *testProcess {
		t.Helper()
		r := start(t, h.command("exec", "box", "/hoard", "bytes", "all"))
		r.prints("taken\n")
		eventually(t, "the number of chunks", func() bool { return strings.Contains(r.stderr(), ":") }) // the other stream
		return r
	}
	bounded := func(what string, most int) {
		t.Helper()
		r := hoards()
		taken, _, _ := strings.Cut(r.stderr(), ":")
		if chunks, err := strconv.Atoi(taken); err != nil || chunks>>8 > most || chunks>>8 < 8 {
			t.Errorf("%s: %d MiB, want 8 to %d: %s", what, chunks>>8, most, r.stderr())
		}
		interrupt(t, r)
	}
	h.up("box", "--memory", "64m", "--nofile", "256", "--bind", h.program+":/hoard")
	bounded("the first command", 96)
	bounded("the next one", 96)
	h.sh("box", "true") // its leaf is the next command's
	bounded("a command in a leaf that was used", 96)
	if got := run(t, h.command("update", "--memory", "32m", "box")); got.code != 0 {
		t.Errorf("update: %+v", got)
	}
	bounded("with less memory", 56)
	r := hoards()
	h.othersTake(1024)
	r.kill()
}
