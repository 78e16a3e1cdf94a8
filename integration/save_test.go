package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPatchHoldsBinaryFilesAndListsTheRest makes one change of each kind.
func TestPatchHoldsBinaryFilesAndListsTheRest(t *testing.T) {
	s, home, dir := newSandboxes(t), newHome(t), t.TempDir()
	s.up("box", "--overlay", home)
	if got := s.exec("box", "sh", "-euc", everyChange+"; truncate -s 16777217 large; mkdir -p clone/.git; echo a >clone/.git/HEAD", home); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	file, archive := filepath.Join(dir, "changes.patch"), filepath.Join(dir, "changes.tar")
	saved := run(t, s.command("save", "box", file))
	shown := run(t, s.command("diff", "box"))
	for name, got := range map[string]result{"save": saved, "diff": shown} {
		if got.code != 0 {
			t.Errorf("%s: status %d", name, got.code)
		}
		for _, want := range []string{
			"/attr: its extended attributes user.note", "/clone/.git/HEAD: git apply refuses this name",
			"/fifo: a fifo", "/large: a file of more than 16 MiB", "/private: an empty directory", "/private: its mode 0700",
			"/src/new: its hard link to src/hard",
		} {
			if !strings.Contains(got.stderr, "left out: "+home+want+"\n") {
				t.Errorf("%s: no %q in %s", name, want, got.stderr)
			}
		}
		if n := strings.Count(got.stderr, "left out: "); n != 7 {
			t.Errorf("%s: %d lines, want 7: %s", name, n, got.stderr)
		}
	}
	if want := "\nsaved to " + file + "\na file that ends in .tar holds all of these but sockets and devices\n"; !strings.HasSuffix(saved.stderr, want) {
		t.Errorf("%s, want %s", saved.stderr, want)
	}
	if !strings.HasSuffix(shown.stdout, content(t, file)) { // the marks of paths come before it
		t.Error("the saved patch is not the diff")
	}
	if got := run(t, s.command("save", "box", archive)); got != (result{stderr: "saved to " + archive + "\n"}) {
		t.Errorf("%+v", got)
	}
	cmd := exec.Command("sh", "-euc", `cp -a "$1" copy; cd copy; git apply "$2"; printf 'a\0c' | cmp - binary; test -x script; test -f becomes-file`, "sh", home, file)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDiffOnATerminalIsShort has no base 85 on the screen.
func TestDiffOnATerminalIsShort(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.sh("box", "cd "+home+"; head -c 10000 /dev/urandom >random; printf 'a\\0c' >binary; mkfifo pipe; echo last >z")
	cmd := s.command("diff", "box")
	cmd.Env = append(os.Environ(), "NO_COLOR=", "TERM=xterm")
	term, p := onTerminal(t, cmd)
	term.shows(t, "Binary files a/binary and b/binary differ")
	term.shows(t, "Binary files /dev/null and b/random differ")
	term.shows(t, "left out: "+home+"/pipe: a fifo")
	if got := p.wait(); got.code != 0 {
		t.Errorf("status %d", got.code)
	}
	if strings.Contains(term.output(), "literal ") {
		t.Errorf("%s", term.output())
	}
}

// TestSaveCountsWhatItDoesNotList has more omissions than lines for them.
func TestSaveCountsWhatItDoesNotList(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.sh("box", "cd "+home+"; seq 2000 | xargs mkdir")
	file := filepath.Join(t.TempDir(), "changes.patch")
	got := run(t, s.command("save", "box", file))
	if got.code != 0 || strings.Count(got.stderr, "\nleft out: ") != 50 || !strings.Contains(got.stderr, "\nleft out: 1950 more\nsaved to") {
		t.Errorf("%+v", got)
	}
}

// TestAKilledSaveLeavesNothing kills save while it writes.
func TestAKilledSaveLeavesNothing(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	s.up("box", "--overlay", home)
	s.sh("box", "head -c 50000000 /dev/urandom > "+home+"/random")
	for {
		dir := t.TempDir()
		save := s.command("save", "box", filepath.Join(dir, "changes.tar"))
		if err := save.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- save.Wait() }()
		for !opensIn(save.Process.Pid, dir) && len(done) == 0 {
			time.Sleep(time.Millisecond)
		}
		_ = save.Process.Kill() // save may have ended
		if err := <-done; err == nil {
			continue
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("the killed save left %v, %v", left, err)
		}
		return
	}
}

// opensIn reports whether a process has a regular file of a directory open.
func opensIn(pid int, dir string) bool {
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return err == nil && slices.ContainsFunc(open, func(fd string) bool {
		name, err := os.Readlink(fd)
		return err == nil && strings.HasPrefix(name, dir+"/")
	})
}
