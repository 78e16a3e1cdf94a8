package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// complete is what bash completes a line to, one candidate a line.
func (s *sandboxes) complete(words ...string) string {
	s.t.Helper()
	program := binary(s.t)
	const script = `source <("$0" completion bash); COMP_WORDS=("$0" "$@"); COMP_CWORD=$#; _sandbox_runtime; printf '%s\n' "${COMPREPLY[@]}"`
	got := run(s.t, exec.Command("bash", append([]string{"-c", script, program}, words...)...))
	if got.code != 0 || got.stderr != "" {
		s.t.Errorf("complete %q: %+v", words, got)
	}
	return strings.TrimSuffix(got.stdout, "\n")
}

func TestBashCompletesCommandsFlagsAndNames(t *testing.T) {
	s := newSandboxes(t)
	s.up("box-1")
	s.up("box-2")
	in := func(words ...string) []string { return append([]string{"--root", s.root}, words...) }
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{"insp"}, "inspect"},
		{[]string{"up", "--mem"}, "--memory"},
		{[]string{"--ro"}, "--root\n--rootless"},
		{[]string{"completion", "b"}, "bash"},
		{in("inspect", ""), "box-1\nbox-2"},
		{in("exec", "box"), "box-1\nbox-2"},
		{in("cp", "box-1"), "box-1:"},
		{in("down", "box-1", "box-2"), "box-2"},
		{[]string{"--root", "=", s.root, "stats", "box-2"}, "box-2"}, // as bash splits --root=DIR
		{in("pause", "box-1"), "box-1"},
		{[]string{"exec", "--socket", "/nope", ""}, ""}, // not those of the state root
		{in("exec", "box-1", ""), ""},
		{in("exec", "--memory", ""), ""},
		{in("exec", "box-1", "--mem"), ""},
		{in("do", "--", "bo"), ""},
		{[]string{"nope", ""}, ""},
	} {
		if got := s.complete(test.words...); got != test.want {
			t.Errorf("%q: %q, want %q", test.words, got, test.want)
		}
	}
	// A completion runs nothing that the user has typed.
	file := filepath.Join(t.TempDir(), "made")
	if got := s.complete("exec", "box-1", "$(touch "+file+")", ""); got != "" || exists(file) {
		t.Errorf("a typed command: %q", got)
	}
}

// fishCompletes has the completions that fish offers for a line, in a directory with the file "bat".
func (s *sandboxes) fishCompletes(line string) string {
	s.t.Helper()
	cmd := exec.Command("fish", "--no-config", "-c", `$argv[1] completion fish | source; complete -C "$argv[1] $argv[2]"`, binary(s.t), line)
	cmd.Dir = s.t.TempDir()
	if err := os.WriteFile(filepath.Join(cmd.Dir, "bat"), nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, "XDG_CONFIG_HOME=", "XDG_DATA_HOME=")
	got := run(s.t, cmd)
	if got.code != 0 || got.stderr != "" {
		s.t.Errorf("complete %q: %+v", line, got)
	}
	return strings.TrimSuffix(got.stdout, "\n")
}

func TestCompletionInFish(t *testing.T) {
	s := newSandboxes(t)
	s.up("box-1")
	s.up("box-2")
	dir := filepath.Dir(s.root)
	made := filepath.Join(dir, "made")
	for line, want := range map[string]string{
		"insp":                                 "inspect",
		"do --hostn":                           "--hostname",
		"--ro":                                 "--root\n--rootless",
		"nope b":                               "bat",
		"completion b":                         "bash",
		"--root " + s.root + " stats ":         "box-1\nbox-2",
		"--root=" + s.root + " stats b":        "box-1\nbox-2",
		"--root " + s.root + " cp box-1":       "box-1:",
		"up --workspace " + dir + "/sta":       dir + "/state/",
		"up --workspace=" + dir + "/sta":       "--workspace=" + dir + "/state/",
		"do -- cat " + dir + "/sta":            dir + "/state/",
		"do -- insp":                           "",
		"exec box-1 (touch " + made + ") insp": "", // runs nothing that the user has typed
	} {
		if got := s.fishCompletes(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if exists(made) {
		t.Error("a completion has run a typed command")
	}
}

func TestCompletionInZsh(t *testing.T) {
	s := newSandboxes(t)
	s.up("box-1")
	dir := filepath.Dir(s.root)
	made := filepath.Join(dir, "made")
	cmd := exec.Command("zsh", "-f", "-i")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "TERM=dumb", "HOME="+cmd.Dir, "PATH="+filepath.Dir(binary(t))+":"+os.Getenv("PATH"))
	term, _ := onTerminal(t, cmd)
	term.typeIn(t, `autoload -Uz compinit; compinit -u -D; source <(sandbox-runtime completion zsh)
show() { print -r -- "<$BUFFER>"; BUFFER= }; zle -N show; bindkey '^O' show
print "rea"dy
`)
	term.shows(t, "ready")
	for line, want := range map[string]string{
		"insp":                                  "inspect ",
		"do --hostn":                            "do --hostname ",
		"--ro":                                  "--root",
		"completion b":                          "completion bash ",
		"--root " + s.root + " stats b":         "--root " + s.root + " stats box-1 ",
		"do -- cat " + dir + "/sta":             "do -- cat " + dir + "/state/",
		"exec box-1 $(touch " + made + ") insp": "exec box-1 $(touch " + made + ") insp",
	} {
		term.typeIn(t, "sandbox-runtime "+line+"\t\x0f")
		term.shows(t, "<sandbox-runtime "+want+">")
	}
	if exists(made) {
		t.Error("a completion has run a typed command")
	}
}
