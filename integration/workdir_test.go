package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// inRemoved has a command run in a working directory that was removed.
func inRemoved(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "removed")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	moved := exec.Command("sh", append([]string{"-c", `rmdir "$PWD" && exec "$@"`, "sh"}, cmd.Args...)...)
	moved.Dir, moved.Env = dir, cmd.Env
	return moved
}

func TestCommandsNeedNoWorkingDirectory(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dir := t.TempDir()
	out := filepath.Join(t.TempDir(), "passwd")
	t.Cleanup(func() { s.downIfUp("box") })
	for _, test := range []struct {
		args   string
		stdout string // the beginning
	}{
		{"do -- pwd", "/workspace\n"},
		{"do --overlay " + dir + " -- pwd", dir + "\n"},
		{"do --workspace " + dir + " -- pwd", "/workspace\n"},
		{"do --bind " + dir + ":/data --storage disk --disk 16m -- ls -d /data", "/data\n"},
		{"do --pid host -- echo same pids", "same pids\n"},
		{"up --overlay " + dir + " box", "box\n"},
		{"exec box pwd", dir + "\n"},
		{"exec --transaction box touch new", ""},
		{"undo box", ""},
		{"cp box:/etc/passwd " + out, ""},
		{"cp " + out + " box:/tmp", ""},
		{"list", "ID "},
		{"changes box", ""},
		{"inspect box", "{"},
		{"update --memory 300m box", ""},
		{"prune", ""},
		{"down box", ""},
	} {
		got := run(t, inRemoved(t, s.command(strings.Fields(test.args)...)))
		if got.code != 0 || !strings.HasPrefix(got.stdout, test.stdout) {
			t.Errorf("%s: %+v, want %q", test.args, got, test.stdout)
		}
	}
}

func TestARelativePathNamesTheRemovedWorkingDirectory(t *testing.T) {
	s := newSandboxes(t)
	for _, args := range [][]string{{"--workspace", "."}, {"--overlay", "../src"}, {"--bind", "data:/data"}} {
		got := run(t, inRemoved(t, s.command(append(append([]string{"do"}, args...), "--", "true")...)))
		path, _, _ := strings.Cut(args[1], ":")
		want := `relative path "` + path + `": the working directory: getwd: no such file or directory; name an absolute path`
		if got.code != 125 || !strings.Contains(got.stderr, want) {
			t.Errorf("%q: %+v, want %q", args, got, want)
		}
	}
}

// The launcher of an embedder works in the embedder's directory.
func TestALauncherNeedsNoWorkingDirectory(t *testing.T) {
	s := newSandboxes(t)
	socket := filepath.Join(t.TempDir(), "socket")
	p := &launcherProcess{start(t, inRemoved(t, s.command("launcher", "--socket", socket))), socket}
	t.Cleanup(p.leave)
	eventually(t, "the launcher to listen", func() bool { return p.ended() || strings.Contains(p.stderr(), "listening") })
	got := run(t, inRemoved(t, exec.Command(binary(t), "--socket", socket, "do", "--", "pwd")))
	if got != (result{0, "/workspace\n", ""}) {
		t.Errorf("do: %+v; the launcher: %s", got, p.stderr())
	}
}

// A program can start in a directory that its user may not enter, such as after setpriv(1) in a directory of root.
func TestAnOrdinaryUserNeedsNoReadableWorkingDirectory(t *testing.T) {
	s := newSandboxes(t)
	dir := t.TempDir()
	for above := dir; strings.HasPrefix(above, os.TempDir()+"/"); above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	unreadable, rules := filepath.Join(dir, "unreadable"), filepath.Join(dir, "rules.json")
	if err := os.Mkdir(unreadable, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, rules, `{"peers": [{"user": 4242}]}`)
	l := s.launcher(filepath.Join(dir, "socket"), "--rules", rules, "--mode", "0666")
	command := func(args ...string) *exec.Cmd {
		words := append([]string{"-c", `exec setpriv --reuid 4242 --regid 4242 --clear-groups "$0" "$@"`, binary(t), "--socket", l.socket}, args...)
		cmd := exec.Command("sh", words...)
		cmd.Dir = unreadable
		return cmd
	}
	if got := run(t, command("do", "--", "pwd")); got != (result{0, "/workspace\n", ""}) {
		t.Errorf("do: %+v", got)
	}
	t.Cleanup(func() { run(t, command("down", "box")) }) // the test can have ended before
	for _, args := range []string{"up box", "exec box pwd", "list", "cp box:/etc/passwd -", "down box"} {
		if got := run(t, command(strings.Fields(args)...)); got.code != 0 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if got := run(t, command("do", "--workspace", ".", "--", "pwd")); got.code != 125 || !strings.Contains(got.stderr, `"."`) {
		t.Errorf("do --workspace .: %+v", got)
	}
}
