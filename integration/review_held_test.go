package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

const heldQuestion = "apply these, too, although they run without a question? [y/N] "

// withHeld adds a path that runs without a question to the two changes.
func withHeld(home string) []string {
	return append([]string{"--review"}, twoChanges(home, "echo evil > .envrc")...)
}

// The prompt asks apart about paths that run without a question.
func TestReviewAsksApartAboutWhatRunsUnasked(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	r := newReviewSession(t, s, home, withHeld(home)...)
	r.answers(home+"/.envrc  ! ", "", question, "r\n", "paging", "\n", question, "a\n",
		"applied 2 changes: 1 created, 1 modified", "", "held back: "+home+"/.envrc: ", "", heldQuestion, "\n",
		"only in the sandbox: 1 change", "", home+"/.envrc", "", question, "a\n", "applied nothing", "", heldQuestion, "n\n", question, "")
	if !isThere(t, filepath.Join(home, "new")) || isThere(t, filepath.Join(home, ".envrc")) {
		t.Error("the host has not just what was not held back")
	}
	r.answers("", "a\n", heldQuestion, "y\n", "applied 1 change: 1 created", "")
	r.removes(0)
	if got := content(t, filepath.Join(home, ".envrc")); got != "evil\n" {
		t.Errorf("%q", got)
	}
}

// A person can leave at that question: the other paths are on the host then, and these
// paths are in the sandbox.
func TestReviewKeepsWhatItHoldsBack(t *testing.T) {
	for _, end := range ends() {
		t.Run(end.name, func(t *testing.T) {
			s, home := newSandboxes(t), newHome(t)
			r := newReviewSession(t, s, home, withHeld(home)...)
			r.answers(question, "a\n", heldQuestion, "")
			end.do(r)
			r.keeps(".envrc")
			if got := content(t, filepath.Join(home, "README")); got != "mine\n" {
				t.Errorf("README is %q", got)
			}
		})
	}
}

// A script must answer the question, too.
func TestReviewOfAScriptThatHoldsBack(t *testing.T) {
	s := newSandboxes(t)
	for input, want := range map[string]bool{"a\n": false, "a\ny\n": true, "a\nn\n": false} {
		home := newHome(t)
		cmd := s.command(append([]string{"do"}, withHeld(home)...)...)
		cmd.Stdin = strings.NewReader(input)
		got := run(t, cmd)
		if got.code != 0 || isThere(t, filepath.Join(home, ".envrc")) != want || !isThere(t, filepath.Join(home, "new")) {
			t.Errorf("%q: %+v", input, got)
		}
	}
}

// A path that runs without a question is listed, also behind many others.
func TestReviewListsWhatRunsUnaskedBehindManyChanges(t *testing.T) {
	s, home := newSandboxes(t), newHome(t)
	many := "mkdir a; for i in $(seq 100); do echo $i > a/$i; done; echo all: > z.mk; mkdir -p z/.vscode; echo {} > z/.vscode/tasks.json"
	r := newReviewSession(t, s, home, append([]string{"--review"}, twoChanges(home, many)...)...)
	r.answers("z/.vscode/tasks.json  ! ", "", fmt.Sprintf("… and %d more", 106-52), "", question, "d\n")
	r.removes(0)
}
