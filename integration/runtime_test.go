package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// An ociRuntime is an OCI runtime binary with a state root and a log of its
// own, called as containerd's shim calls it.
type ociRuntime struct {
	t       testing.TB
	program string
	root    string // state root
	log     string // JSON log
}

// ours is the binary under test, reference the runc whose behaviour it keeps.
func ours(t testing.TB) *ociRuntime { t.Helper(); return newRuntime(t, binary(t)) }

func reference(t testing.TB) *ociRuntime {
	t.Helper()
	need(t, peers())
	return newRuntime(t, peer("bin/runc"))
}

// newRuntime registers the clean-up: every container is deleted, and a state
// root that is not empty then fails the test.
func newRuntime(t testing.TB, program string) *ociRuntime {
	t.Helper()
	dir := t.TempDir()
	r := &ociRuntime{t: t, program: program, root: filepath.Join(dir, "root"), log: filepath.Join(dir, "log")}
	t.Cleanup(func() {
		for _, id := range r.ids() {
			if got := run(t, r.command("delete", "--force", id)); got.code != 0 {
				t.Errorf("delete --force %s: %s", id, got.stderr)
			}
		}
		if ids := r.ids(); len(ids) != 0 {
			t.Errorf("left in the state root: %q", ids)
		}
	})
	return r
}

// ids lists the containers by their directories in the state root.
func (r *ociRuntime) ids() []string {
	entries, _ := os.ReadDir(r.root)
	var ids []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "@") { // @sandboxes and the like are no containers
			ids = append(ids, e.Name())
		}
	}
	return ids
}

func (r *ociRuntime) command(args ...string) *exec.Cmd {
	return exec.Command(r.program, append([]string{"--root", r.root, "--log", r.log, "--log-format", "json"}, args...)...)
}

// run runs a command that is expected to work.
func (r *ociRuntime) run(args ...string) result {
	r.t.Helper()
	got := run(r.t, r.command(args...))
	if got.code != 0 {
		r.t.Fatalf("%q: status %d, stderr %s", args, got.code, got.stderr)
	}
	return got
}

// create creates a container and returns its PID.
func (r *ociRuntime) create(b *bundle, id string, flags ...string) int {
	r.t.Helper()
	pidFile := filepath.Join(r.t.TempDir(), "pid")
	args := append([]string{"create", "--bundle", b.dir, "--pid-file", pidFile}, flags...)
	r.run(append(args, id)...)
	pid, err := strconv.Atoi(content(r.t, pidFile))
	if err != nil {
		r.t.Fatalf("pid file: %v", err)
	}
	return pid
}

// A containerState is what state prints and, in a list, list.
type containerState struct {
	Version     string            `json:"ociVersion"`
	ID          string            `json:"id"`
	PID         int               `json:"pid"`
	Status      string            `json:"status"`
	Bundle      string            `json:"bundle"`
	Rootfs      string            `json:"rootfs"`
	Annotations map[string]string `json:"annotations"`
}

func (r *ociRuntime) state(id string) containerState {
	r.t.Helper()
	var s containerState
	decode(r.t, r.run("state", id).stdout, &s)
	return s
}

func (r *ociRuntime) waitUntil(id, status string) {
	r.t.Helper()
	eventually(r.t, id+" is "+status, func() bool { return r.state(id).Status == status })
}

// logged returns the entries of the JSON log so far.
func (r *ociRuntime) logged() []map[string]string {
	r.t.Helper()
	data, err := os.ReadFile(r.log)
	if err != nil {
		return nil // nothing was ever logged
	}
	var entries []map[string]string
	for line := range strings.Lines(string(data)) {
		var e map[string]string
		decode(r.t, line, &e)
		entries = append(entries, e)
	}
	return entries
}

func decode(t testing.TB, data string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), into); err != nil {
		t.Fatalf("%v in %q", err, data)
	}
}

// exitCode is a process's status as a shell gives it.
func exitCode(p *os.ProcessState) int {
	if ws, ok := p.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.ExitCode()
}

// alive says whether a process runs, a zombie being none.
func alive(pid int) bool {
	return unix.Kill(pid, 0) == nil && !strings.Contains(processStat(pid), ") Z ")
}

func processStat(pid int) string {
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return string(stat)
}
