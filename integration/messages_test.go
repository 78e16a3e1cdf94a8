package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A sandbox with one overlay and no workspace starts its commands there.
func TestDoStartsInTheOnlyOverlay(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dir, other := t.TempDir(), t.TempDir()
	for _, tt := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--overlay", dir}, dir},
		{[]string{"--overlay", dir, "--overlay", other}, "/workspace"},
		{[]string{"--overlay", dir, "--workspace", other}, "/workspace"},
		{[]string{"--overlay", dir, "--cwd", "/tmp"}, "/tmp"},
	} {
		if got := s.do(append(tt.flags, "--", "pwd")...); got != (result{0, tt.want + "\n", ""}) {
			t.Errorf("%q: %+v, want %s", tt.flags, got, tt.want)
		}
	}
	s.up("box", "--overlay", dir)
	if got := s.exec("box", "pwd"); got != (result{0, dir + "\n", ""}) {
		t.Errorf("exec: %+v, want %s", got, dir)
	}
}

func TestATerminalIsToldWhatVanishesWithTheWorkspace(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		script string
		flags  []string
		want   string
	}{
		{"echo 1 > a; echo 2 > b; echo 3 > /tmp/c", nil, "2 files below /workspace went with the sandbox (to keep such files: --workspace DIR or --overlay DIR)"},
		{"echo 1 > a; exit 3", nil, "1 file below /workspace went"},
		{"echo 1 > /workspace/a", []string{"--overlay", dir}, "1 file below /workspace went"},
		{"echo 1 > a", []string{"--overlay", dir}, ""},
		{"echo 1 > a", []string{"--workspace", dir}, ""},
		{"echo 1 > a; rm a", nil, ""},
	} {
		args := append(append([]string{"do"}, tt.flags...), "--", "sh", "-c", tt.script)
		term, p := onTerminal(t, s.command(args...))
		p.wait()
		<-term.closed
		if got := term.output(); !strings.Contains(got, tt.want) || tt.want == "" && strings.Contains(got, "went with") {
			t.Errorf("%q: the terminal has %q, want %q", args, got, tt.want)
		}
	}
}

// The messages of do are notes of its Result: --json prints nothing else.
func TestJSONIsAllThatIsPrinted(t *testing.T) {
	need(t, layersOfAnywhere(t))
	s := newSandboxes(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		args []string
		code int
		note string
	}{
		{[]string{"--overlay", dir, "--", "touch", "a"}, 0, "discarded 1 change"},
		{[]string{"--overlay", dir, "--apply", "--", "touch", "a"}, 0, "applied 1 change"},
		{[]string{"--", "nonsense-command"}, 127, ""},
		{[]string{"--memory", "x", "--", "true"}, 125, ""},
		{[]string{"--nope"}, 125, ""},
		{[]string{"--", "sh", "-c", "kill $$"}, 128 + 15, ""},
	} {
		got := s.do(append([]string{"--json"}, tt.args...)...)
		var r struct{ Notes []string }
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != tt.code || got.stderr != "" {
			t.Errorf("%q: %+v, %v", tt.args, got, err)
		}
		if !strings.Contains(strings.Join(r.Notes, "\n"), tt.note) {
			t.Errorf("%q: the notes are %q, want %q", tt.args, r.Notes, tt.note)
		}
	}
	s.up("box")
	for _, args := range [][]string{{"up", "--memory", "64m", "--json", "box"}, {"exec", "--json", "box", "nonsense-command"}} {
		if got := run(t, s.command(args...)); got.stderr != "" || !json.Valid([]byte(got.stdout)) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := run(t, s.command("up", "--memory", "64m", "--json", "box")); !strings.Contains(got.stdout, "--memory had no effect") {
		t.Errorf("up of a sandbox that is up: %+v", got)
	}
}

func TestAFlagErrorClaimsNoLimitsAndNoIsolation(t *testing.T) {
	s := newSandboxes(t)
	for _, args := range [][]string{{"--nope"}, {"--memory", "x", "--", "true"}} {
		got := s.do(append([]string{"--json"}, args...)...)
		if strings.Contains(got.stdout, "unavailable") || !strings.Contains(got.stdout, `"isolation":"","limits":{}`) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

func TestAReaderThatHasEnoughIsNoMessage(t *testing.T) {
	s := newSandboxes(t)
	cmd := exec.Command("sh", "-c", `{ "$@" ; echo $? >&2; } | head -n 1`, "sh")
	cmd.Args = append(cmd.Args, s.command("do", "--", "yes").Args...)
	if got := run(t, cmd); got != (result{0, "y\n", "141\n"}) {
		t.Errorf("do -- yes | head -n 1: %+v", got)
	}
}

// Debian's bash reads no start file here: it takes the prompt from the environment.
func TestATerminalHasItsTypeAndAPromptWithTheName(t *testing.T) {
	s := newSandboxes(t)
	t.Setenv("TERM", "vt220")
	s.up("box")
	s.up("other", "--env", "TERM=dumb", "--env", "PS1=mine> ")
	for _, tt := range []struct{ args, want []string }{
		{[]string{"exec", "-i", "-t", "box", "bash", "--norc"}, []string{"(box) /workspace$ ", "type=vt220="}},
		{[]string{"exec", "-i", "-t", "box", "sh"}, []string{"(box) /workspace$ ", "type=vt220="}},
		{[]string{"exec", "-i", "-t", "other", "sh"}, []string{"mine> ", "type=dumb="}},
		{[]string{"exec", "-i", "-t", "-e", "TERM=ansi", "box", "sh"}, []string{"(box) ", "type=ansi="}},
		{[]string{"do", "-i", "-t", "--", "sh"}, []string{") /workspace$ ", "type=vt220="}},
	} {
		term, p := onTerminal(t, s.command(tt.args...))
		term.shows(t, tt.want[0])
		term.typeIn(t, "echo type=$TERM=\nexit\n")
		term.shows(t, tt.want[1])
		p.wait()
	}
	if got := s.exec("box", "sh", "-c", "echo $TERM $PS1"); got.stdout != "xterm $\n" && got.stdout != "xterm\n" {
		t.Errorf("without a terminal: %+v", got)
	}
}

func TestARefusedRootHasNothingNew(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"do", "--", "true"}, {"up", "box"}, {"prune"}} {
		got := run(t, exec.Command(binary(t), append([]string{"--root", root}, args...)...))
		if left, err := os.ReadDir(root); err != nil || len(left) > 0 || got.code == 0 {
			t.Errorf("%q: %+v, and the root has %v, %v", args, got, left, err)
		}
	}
}

func TestATerminalHasTimesForAPerson(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	s.detached("box", "sleep 600")
	for _, args := range [][]string{{"list"}, {"ps", "--execs", "box"}} {
		term, p := onTerminal(t, s.command(args...))
		if got := p.wait(); got.code != 0 {
			t.Fatalf("%q: %+v", args, got)
		}
		<-term.closed
		if got := term.output(); !strings.Contains(got, " ago") {
			t.Errorf("%q on a terminal: %q", args, got)
		}
		if got := run(t, s.command(args...)); !regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:`).MatchString(got.stdout) {
			t.Errorf("%q to a pipe: %+v", args, got)
		}
	}
}
