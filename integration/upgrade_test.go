package integration

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
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
	testhost.Long(t)
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	current, dir := binary(t), t.TempDir()
	snap := "upgrade-" + filepath.Base(s.root)

	t.Setenv("SANDBOX_RUNTIME_BIN", older(t))
	running, ended := s.bringUp(dir, snap)

	t.Setenv("SANDBOX_RUNTIME_BIN", current)
	if list := s.oci("list", "-q").stdout; !strings.Contains(list, "disk\n") || !strings.Contains(list, "memory\n") {
		t.Errorf("list: %q", list)
	}
	if got := s.sh("memory", "cat /workspace/kept > /dev/stdout"); got != "kept\n" {
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

// bringUp makes the sandboxes "disk", with an overlay of the directory, a snapshot and a
// transaction, and "memory", with two detached commands.
func (s *sandboxes) bringUp(dir, snap string) (running, ended string) {
	for name, text := range map[string]string{"file": "host\n", "gone": "host\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	s.up("disk", "--overlay", dir, "--cwd", dir, "--storage", "disk")
	s.up("memory", "--storage", "memory", "--memory", "256m")
	s.sh("disk", "echo sandbox > file; rm gone; mkdir new; echo sandbox > new/file")
	s.ok("snapshot", "disk", snap)
	s.t.Cleanup(func() { run(s.t, s.command("snapshot", "--remove", snap)) })
	s.ok("exec", "--transaction", "disk", "sh", "-c", "echo transaction > file")
	s.sh("memory", "echo kept > /workspace/kept")
	s.sh("memory", "mkfifo /tmp/fifo")
	running = s.detached("memory", "echo begun; read line < /tmp/fifo; echo $line; exit 3")
	ended = s.detached("memory", "echo ended; exit 4")
	return running, ended
}

// Each field that an older version has written is written by this one, too: a field that was
// renamed would be read as empty.
func TestUpgradeKeepsEachField(t *testing.T) {
	testhost.Long(t)
	need(t, layersOfAnywhere(t))
	current, old := binary(t), older(t)
	fields := func(program string) map[string]bool {
		t.Setenv("SANDBOX_RUNTIME_BIN", program)
		s := newSandboxes(t)
		snap := "fields-" + filepath.Base(filepath.Dir(s.root))
		dir := t.TempDir()
		s.bringUp(dir, snap)
		s.up("fork", "--from", snap)
		all := map[string]bool{}
		fieldsBelow(t, filepath.Join(s.root, "@sandboxes"), all)
		snapshots, err := filepath.Glob(filepath.Join(dataDir, "snapshots", "*"+snap))
		if err != nil || len(snapshots) != 1 {
			t.Fatal(snapshots, err)
		}
		fieldsBelow(t, snapshots[0], all)
		for _, name := range []string{"fork", "disk", "memory"} {
			s.ok("down", name)
		}
		s.ok("snapshot", "--remove", snap)
		return all
	}
	before, now := fields(old), fields(current)
	for _, file := range []string{"sandbox.json", "exec.json"} {
		if !before[file] || !now[file] {
			t.Fatalf("no %s in %v and %v", file, before, now)
		}
	}
	for field := range before {
		if !now[field] {
			t.Errorf("%s is not written any more", field)
		}
	}
}

// fieldsBelow adds the fields of each JSON file below a directory, as in
// "sandbox.json.config.limits.memory".
func fieldsBelow(t *testing.T, dir string, all map[string]bool) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".json" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var content any
		if err := json.Unmarshal(data, &content); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all[filepath.Base(path)] = true
		addFields(filepath.Base(path), content, all)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func addFields(at string, content any, all map[string]bool) {
	switch content := content.(type) {
	case []any:
		for _, c := range content {
			addFields(at, c, all)
		}
	case map[string]any:
		for name, c := range content {
			if strings.HasPrefix(name, "/") { // a path inside, not a field
				name = "PATH"
			}
			all[at+"."+name] = true
			addFields(at+"."+name, c, all)
		}
	}
}
