package integration

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// cp runs cp with the arguments, in a directory of the host.
func (s *sandboxes) cp(dir string, args ...string) result {
	s.t.Helper()
	cmd := s.command(append([]string{"cp"}, args...)...)
	cmd.Dir = dir
	return run(s.t, cmd)
}

func TestCpCopiesTreesBothWays(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	dir := t.TempDir()
	for name, content := range map[string]string{"tree/a": "1\n", "tree/sub/b": "2\n"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/b", filepath.Join(dir, "tree", "link")); err != nil {
		t.Fatal(err)
	}
	want := func(step string, got, want result) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %+v, want %+v", step, got, want)
		}
	}
	want("into a directory", s.cp(dir, "tree", "box:/workspace"), result{})
	if got := s.sh("box", "cat tree/a tree/link; readlink tree/link; stat -c '%u %a' tree/sub/b"); got != "1\n2\nsub/b\n1000 750\n" {
		t.Errorf("inside: %q", got)
	}
	s.sh("box", "echo 3 > tree/sub/c; chmod 755 tree/sub/c")
	want("out", s.cp(dir, "box:tree", "out"), result{})
	want("its content again", s.cp(dir, "box:/workspace/tree/.", "out"), result{})
	for name, content := range map[string]string{"a": "1\n", "link": "2\n", "sub/c": "3\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, "out", name)); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "out/sub/c")); err != nil || info.Mode() != 0o755 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	want("to stdout", s.cp(dir, "box:tree/a", "-"), result{stdout: "1\n"})
	from := s.command("cp", "-", "box:given")
	from.Stdin = strings.NewReader("from stdin\n")
	want("from stdin", run(t, from), result{})
	if got := s.sh("box", "cat given"); got != "from stdin\n" {
		t.Errorf("given: %q", got)
	}
}

// A copy replaces files and links, and no directory by anything else.
func TestCpReplacesFilesAndLinks(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "links"), 0o755), os.Symlink("new", filepath.Join(dir, "links/a"))); err != nil {
		t.Fatal(err)
	}
	s.sh("box", "mkdir -p file link full/a; echo old > file/a; ln -s file link/a")
	for _, name := range []string{"file", "link"} {
		if got := s.cp(dir, "links/.", "box:"+name); got != (result{}) {
			t.Errorf("a link in place of a %s: %+v", name, got)
		}
		if got := s.sh("box", "readlink "+name+"/a"); got != "new\n" {
			t.Errorf("a link in place of a %s: %q", name, got)
		}
	}
	if got := s.cp(dir, "links/.", "box:full"); got != (result{1, "", "sandbox-runtime: copy a link to full/a: file already exists\n"}) {
		t.Errorf("a link in place of a directory: %+v", got)
	}
	// A directory does not go through a link in its place, nor over a file.
	s.sh("box", "mkdir -p tree/a; echo x > tree/a/b; test -d full/a")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "out/other"), 0o755), os.Symlink("other", filepath.Join(dir, "out/a"))); err != nil {
		t.Fatal(err)
	}
	if got := s.cp(dir, "box:tree/.", "out"); got.code != 1 || exists(filepath.Join(dir, "out/other/b")) {
		t.Errorf("through a link of the host: %+v", got)
	}
	s.sh("box", "rm -r full/a; echo x > full/a")
	if err := os.MkdirAll(filepath.Join(dir, "dirs/a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := s.cp(dir, "dirs/.", "box:full"); got.code != 1 || !strings.Contains(got.stderr, "copy a directory to full/a: not a directory") {
		t.Errorf("over a file: %+v", got)
	}
}

// What a sandbox chooses, links and file types, reaches nothing of the host beside the copy.
func TestCpTakesNothingHostileOut(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sh("box", `mkdir d; cd d; ln -s ../victim escape; ln -s `+victim+` absolute; ln -s . here; mkfifo fifo; printf x > "$(printf 'a\033[2Jb')"; echo ok > ok`)
	got := s.cp(dir, "box:d", "out")
	if got.code != 1 || !strings.Contains(got.stderr, "left out: d/escape: a link to ../victim, out of the copied directory\n") ||
		!strings.HasSuffix(got.stderr, "sandbox-runtime: left out: 3; the rest was copied\n") {
		t.Errorf("out: %+v", got)
	}
	for name, there := range map[string]bool{"escape": false, "absolute": false, "fifo": false, "ok": true, "here": true, "a\x1b[2Jb": true} {
		if _, err := os.Lstat(filepath.Join(dir, "out", name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A link becomes a file of the same name: the copy replaces the link.
	s.sh("box", "cd d; rm *; ln -s ok link; echo old > ok")
	s.cp(dir, "box:d/.", "out")
	s.sh("box", "cd d; rm link; echo new > link")
	if got := s.cp(dir, "box:d/.", "out"); got != (result{}) {
		t.Errorf("again: %+v", got)
	}
	if got := content(t, filepath.Join(dir, "out/ok")); got != "old\n" {
		t.Errorf("written through a link: %q", got)
	}
	// A name with the end of a line makes no message of its own.
	s.sh("box", `mkdir lines; mkfifo "$(printf 'lines/f\nleft out: nothing')"`)
	if got := s.cp(dir, "box:lines", "lines"); !strings.HasPrefix(got.stderr, `left out: lines/f\nleft out: nothing: neither`) {
		t.Errorf("a name of two lines: %+v", got)
	}
	// An error that has a name of the sandbox's choice shows no control character.
	s.sh("box", `mkdir -m 0 "d/$(printf 'x\033[2Jy')"`)
	if got := s.cp(dir, "box:d", "out"); got.code != 1 || strings.Contains(got.stderr, "\x1b") || !strings.Contains(got.stderr, `x\x1b[2Jy`) {
		t.Errorf("an unreadable directory: %+v", got)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ from, to, says string }{
		{"box:d/ok", pipe, "replace " + pipe + ": not a regular file"},
		{"box:d/ok", "none/", "copy to none/: file does not exist"},
		{"box:nope", "x", "stat nope: no such file or directory in the sandbox"},
		{"nope:d", "x", "sandbox nope does not exist: it was removed, or never made"},
		{"box:d", "box:e", "say one path in a sandbox, as in box:/workspace/out, and one on the host"},
	} {
		if got := s.cp(dir, test.from, test.to); got != (result{1, "", "sandbox-runtime: " + test.says + "\n"}) {
			t.Errorf("%s to %s: %+v", test.from, test.to, got)
		}
	}
	if got := content(t, victim); got != "mine\n" {
		t.Errorf("the victim has %q", got)
	}
}

// A sandbox can make links in its workspace, under the names of files that the user copies there.
func TestCpToAWorkspaceReplacesTheLinksThere(t *testing.T) {
	s := newSandboxes(t)
	dir, workspace := t.TempDir(), t.TempDir()
	s.up("box", "--workspace", workspace)
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.sh("box", "echo new > /tmp/file; mkdir /tmp/victims; echo new > /tmp/victims/victim")
	for _, test := range []struct{ name, leads, source, target string }{
		{"file", victim, "/tmp/file", workspace},
		{"file", victim, "/tmp/file", workspace + "/file"},
		{"victims", dir, "/tmp/victims", workspace},
	} {
		s.sh("box", "rm -rf "+test.name+"; ln -s "+test.leads+" "+test.name)
		s.cp(dir, "box:"+test.source, test.target)
		if got := content(t, victim); got != "mine\n" {
			t.Fatalf("%s to %s: the victim has %q", test.source, test.target, got)
		}
	}
	if got := content(t, filepath.Join(workspace, "file")); got != "new\n" {
		t.Errorf("the copy has %q", got)
	}
	// A directory that the user names may be a link.
	if err := os.Symlink(workspace, filepath.Join(dir, "named")); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"box:/tmp/victims/.", "box:/tmp/victims/victim"} {
		if got := s.cp(dir, source, "named"); got != (result{}) || content(t, filepath.Join(workspace, "victim")) != "new\n" {
			t.Errorf("%s to a link: %+v", source, got)
		}
		s.sh("box", "rm victim")
	}
}

// A copy that ends early leaves no part of the file in the sandbox, even after SIGKILL.
func TestCpThatEndsEarlyLeavesNothing(t *testing.T) {
	s := newSandboxes(t)
	s.up("box", "--workspace", t.TempDir())
	s.sh("box", "mkdir new; echo old > /workspace/old")
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		for _, target := range []string{"new/file", "/workspace/old", "/tmp/file"} {
			cmd := s.command("cp", "-", "box:"+target)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// cp has sent all but the last two chunks when it reads the rest of the pipe.
			if _, err := in.Write(bytes.Repeat([]byte("x"), 4<<20)); err != nil {
				t.Error(err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Errorf("%s, %v: cp ended well", target, signal)
			}
			eventually(t, "nothing but the old file is left", func() bool {
				return s.sh("box", "find new /workspace /tmp -type f") == "/workspace/old\n"
			})
		}
	}
	if got := s.sh("box", "cat /workspace/old"); got != "old\n" {
		t.Errorf("the old file has %q", got)
	}
}

// A sparse file of the host takes no more room in the sandbox than on the host.
func TestCpKeepsHoles(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = f.WriteAt([]byte("middle"), 40<<20)
	if err := errors.Join(err, f.Truncate(100<<20)); err != nil {
		t.Fatal(err)
	}
	if got := s.cp("/", path, "box:disk"); got != (result{}) {
		t.Fatalf("cp: %+v", got)
	}
	if got := s.sh("box", "stat -c %s disk; tail -c +41943041 disk | head -c 6; test $(stat -c %b disk) -le 64 || stat -c %b disk"); got != "104857600\nmiddle" {
		t.Errorf("inside: %q", got)
	}
}
