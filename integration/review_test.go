package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A person at a terminal looks at the diff, applies one path, saves the rest.
func TestReviewOnATerminal(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	before := snapshotOf(t, home)
	cmd := s.command("do", "--overlay", home, "--review", "--", "sh", "-euc", everyChange, home)
	cmd.Env = append(os.Environ(), "PAGER=cat", "NO_COLOR=", "TERM=xterm")
	term, p := onTerminal(t, cmd)
	term.shows(t, "16 changes: 7 created, 8 modified, 1 deleted")
	term.shows(t, "\x1b[32m")
	term.shows(t, "[d]iscard")
	if now := snapshotOf(t, home); len(differing(before, now)) > 0 {
		t.Errorf("before anything was applied, the host has changed at %q", differing(before, now))
	}
	term.typeIn(t, "r\n")
	term.shows(t, "+2")
	term.typeIn(t, "a README\n")
	term.shows(t, "applied 1 change")
	saved := filepath.Join(t.TempDir(), "rest.tar")
	term.typeIn(t, "s "+saved+"\n")
	term.shows(t, "saved to")
	if got := p.wait(); got.code != 0 {
		t.Errorf("status %d", got.code)
	}
	if got := differing(before, snapshotOf(t, home)); len(got) != 1 || got[0] != "README" {
		t.Errorf("the host has changed at %q, want README", got)
	}
	if _, err := os.Stat(saved); err != nil {
		t.Error(err)
	}
}

func TestReviewAfterAnInteractiveSession(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	before := snapshotOf(t, home)
	term, p := onTerminal(t, s.command("do", "-i", "-t", "--overlay", home, "--cwd", home, "--", "sh"))
	term.typeIn(t, "echo typed > typed; exit\n")
	term.shows(t, "1 change: 1 created")
	term.shows(t, "[d]iscard? ")
	term.typeIn(t, "d\n")
	term.shows(t, "discarded")
	p.wait()
	if got := differing(before, snapshotOf(t, home)); len(got) > 0 {
		t.Errorf("the host has changed at %q", got)
	}
}

// Without a terminal an answer may come from a pipe, and none discards.
func TestReviewWithoutATerminal(t *testing.T) {
	s := newSandboxes(t)
	for _, test := range []struct {
		input, says string
		applied     bool
	}{
		{"", "discarded", false}, {"x\nd\n", "is none of these", false}, {"a\n", "applied 1 change", true},
		{"A \"new\"\nd\n", "applied 1 change", true}, {"a old", "discarded", false}, {"a \"new", "discarded", false},
		{"s /nowhere/x.tar\na\n", "no such file", true}, {strings.Repeat("y", 70<<10), "more than 65536 bytes", false},
	} {
		home := newHome(t)
		cmd := s.command("do", "--overlay", home, "--review", "--", "sh", "-c", "echo new > "+home+"/new")
		cmd.Stdin = strings.NewReader(test.input)
		got := run(t, cmd)
		_, err := os.Stat(filepath.Join(home, "new"))
		if !strings.Contains(got.stderr, test.says) || (err == nil) != test.applied || strings.Contains(got.stderr, "\x1b") {
			t.Errorf("%.20q: %+v, applied %v", test.input, got, err == nil)
		}
	}
}

func TestDoAppliesOrKeepsOrDiscards(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	script := "echo new > " + home + "/$0"
	if got := s.do("--overlay", home, "--", "sh", "-c", script, "discarded"); !strings.Contains(got.stderr, "discarded 1 change") {
		t.Errorf("%+v", got)
	}
	if got := s.do("--overlay", home, "--apply", "--", "sh", "-c", script, "applied"); !strings.Contains(got.stderr, "applied 1 change") {
		t.Errorf("%+v", got)
	}
	for name, want := range map[string]bool{"discarded": false, "applied": true} {
		if _, err := os.Stat(filepath.Join(home, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	kept := s.do("--overlay", home, "--keep", "--", "sh", "-c", script, "kept")
	_, rest, _ := strings.Cut(kept.stderr, "kept as ")
	id, _, _ := strings.Cut(rest, " ")
	if got := run(t, s.command("changes", id)); !strings.Contains(got.stdout, home+"/kept") {
		t.Errorf("%+v, changes: %+v", kept, got)
	}
	s.downIfUp(id)
}

// What cannot be applied is not lost.
func TestDoKeepsWhatItCannotApply(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	cmd := s.command("do", "-i", "--overlay", home, "--apply", "--", "sh", "-c",
		"cd "+home+"; echo mine > README; echo ready; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, cmd)
	p.prints("ready\n")
	overwrite(t, filepath.Join(home, "README"))
	in.Close()
	got := p.wait()
	_, rest, _ := strings.Cut(got.stderr, "stays up as ")
	id, _, _ := strings.Cut(rest, " ")
	if got.code != 125 || !strings.Contains(got.stderr, home+"/README") || id == "" {
		t.Fatalf("%+v", got)
	}
	if got := run(t, s.command("apply", "--yes", "--overwrite", id)); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if text, err := os.ReadFile(filepath.Join(home, "README")); err != nil || string(text) != "mine\n" {
		t.Errorf("%q, %v", text, err)
	}
	s.downIfUp(id)
}

// A way out that is none is not offered.
func TestDoSaysHowToApplyAgain(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	if err := unix.Mount(home, home, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(home, unix.MNT_DETACH)
	if err := unix.Mount("", home, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	got := s.do("--overlay", home, "--apply", "--", "sh", "-c", "echo new > "+home+"/new")
	_, rest, _ := strings.Cut(got.stderr, "stays up as ")
	id, _, _ := strings.Cut(rest, " ")
	if got.code != 125 || !strings.Contains(got.stderr, "read-only") || strings.Contains(got.stderr, "--overwrite") || !strings.Contains(got.stderr, "apply "+id) {
		t.Errorf("%+v", got)
	}
	s.downIfUp(id)
}

// The pager has the terminal's ^C. At the question ^C ends the program, which keeps the
// sandbox.
func TestInterruptsOfAReview(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	pager := filepath.Join(t.TempDir(), "pager")
	script := "#!/bin/sh\ntrap 'echo held' INT\necho paging\nuntil read line <$1 && [ \"$line\" = end ]; do :; done\necho paged\n"
	if err := os.WriteFile(pager, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := s.command("do", "--overlay", home, "--review", "--", "sh", "-c", "echo new > "+home+"/new")
	cmd.Env = append(os.Environ(), "PAGER="+pager+" /dev/tty")
	term, p := onTerminal(t, cmd)
	term.shows(t, "[d]iscard")
	term.typeIn(t, "r\n")
	term.shows(t, "paging")
	term.typeIn(t, "\x03")
	term.shows(t, "held")
	term.typeIn(t, "end\n")
	term.shows(t, "paged\r\n[r]eview")
	term.typeIn(t, "\x03")
	term.shows(t, "interrupted by SIGINT")
	if got := p.wait(); got.code != 125 {
		t.Errorf("status %d", got.code)
	}
	for _, name := range s.names() {
		s.downIfUp(name)
	}
}
