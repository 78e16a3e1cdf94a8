package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// olderVersion is the commit of the version that the upgrade begins with.
const olderVersion = "62e1284"

// older builds the older version from the history of the repository.
func older(t *testing.T) string {
	t.Helper()
	if exec.Command("git", "-C", "..", "cat-file", "-e", olderVersion+"^{commit}").Run() != nil {
		t.Skip("the checkout has no history")
	}
	dir := t.TempDir()
	build := exec.Command("sh", "-euc", `git -C .. archive "$1" | tar -x -C "$2"; make -C "$2" build`, "sh", olderVersion, dir)
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return filepath.Join(dir, "bin", "sandbox-runtime")
}

// What an older version has brought up, this one serves: records, snapshots, the agent's
// protocol and histories of transactions are read across versions.
func TestUpgradeKeepsSandboxes(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	current, dir := binary(t), t.TempDir()
	for name, text := range map[string]string{"file": "host\n", "gone": "host\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	snap := "upgrade-" + filepath.Base(s.root)

	t.Setenv("SANDBOX_RUNTIME_BIN", older(t))
	s.up("disk", "--overlay", dir, "--cwd", dir, "--storage", "disk")
	s.up("memory", "--storage", "memory", "--memory", "256m")
	s.sh("disk", "echo sandbox > file; rm gone; mkdir new; echo sandbox > new/file")
	s.ok("snapshot", "disk", snap)
	t.Cleanup(func() { run(t, s.command("snapshot", "--remove", snap)) })
	s.ok("exec", "--transaction", "disk", "sh", "-c", "echo transaction > file")
	s.sh("memory", "echo kept > /workspace/kept")
	s.sh("memory", "mkfifo /tmp/fifo")
	running := s.detached("memory", "echo begun; read line < /tmp/fifo; echo $line; exit 3")
	ended := s.detached("memory", "echo ended; exit 4")

	t.Setenv("SANDBOX_RUNTIME_BIN", current)
	if list := s.oci("list", "-q").stdout; !strings.Contains(list, "disk\n") || !strings.Contains(list, "memory\n") {
		t.Errorf("list: %q", list)
	}
	if got := s.sh("memory", "cat /workspace/kept"); got != "kept\n" {
		t.Errorf("exec: %q", got)
	}
	execs := s.execs("memory")
	for _, id := range []string{running, ended} {
		if !execs[id].Detached {
			t.Errorf("ps: no detached %s in %+v", id, execs)
		}
	}
	if got := run(t, s.command("attach", "memory", ended)); got != (result{4, "ended\n", ""}) {
		t.Errorf("attach to what has ended: %+v", got)
	}
	waiting := start(t, s.command("attach", "memory", running))
	s.sh("memory", "echo go > /tmp/fifo")
	if got := waiting.wait(); got != (result{3, "begun\ngo\n", ""}) {
		t.Errorf("attach to what runs: %+v", got)
	}
	if got := s.sh("disk", "cat file"); got != "transaction\n" {
		t.Errorf("after the transaction: %q", got)
	}
	s.ok("undo", "disk")
	if got := s.ok("changes", "disk").stdout; !strings.Contains(got, "new/file") || !strings.Contains(got, "gone") {
		t.Errorf("changes: %q", got)
	}
	s.ok("apply", "--yes", "disk")
	if text, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(text) != "sandbox\n" {
		t.Errorf("applied: %q, %v", text, err)
	}
	if exists(filepath.Join(dir, "gone")) || !exists(filepath.Join(dir, "new", "file")) {
		t.Error("not all was applied")
	}
	s.up("fork", "--from", snap)
	if got := s.sh("fork", "cat "+dir+"/new/file"); got != "sandbox\n" {
		t.Errorf("a fork of the snapshot: %q", got)
	}
	s.ok("snapshot", "--remove", snap)
	s.ok("pause", "memory")
	s.ok("resume", "memory")
	s.ok("update", "--memory", "300m", "memory")
	for _, name := range []string{"fork", "disk", "memory"} {
		s.ok("down", name)
	}
}
