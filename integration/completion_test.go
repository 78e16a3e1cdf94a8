package integration

import (
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
