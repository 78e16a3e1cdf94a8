package review

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func TestHeldPathsBelowOneAreOneLine(t *testing.T) {
	all := []sandbox.Unapplied{
		{Path: "/p/.git", Reason: "a"}, {Path: "/p/.git/hooks", Reason: "a"}, {Path: "/p/.git/x", Reason: "b"},
		{Path: "/p/.gitx", Reason: "a"},
	}
	var paths []string
	for _, u := range heldTops(all) {
		paths = append(paths, u.Path)
	}
	if got := strings.Join(paths, " "); got != "/p/.git /p/.git/x /p/.gitx" {
		t.Errorf("listed are %s", got)
	}
}

func TestMarkLines(t *testing.T) {
	m := markLines{head: "runs unasked", limit: 2}
	for _, path := range []string{"/p/.git", "/p/.git/config", "/p/a\n+++ b/x", "/p/c", "/p/d"} {
		m.add(sandbox.Change{Path: path, Held: true, Warning: "why"})
	}
	var b strings.Builder
	m.write(&b)
	want := "# runs unasked: /p/.git: why\n# runs unasked: \"/p/a\\n+++ b/x\": why\n# runs unasked: 2 more\n"
	if b.String() != want {
		t.Errorf("got %q", b.String())
	}
}

func TestChangeLinesTellTheReason(t *testing.T) {
	c := sandbox.Change{Path: "/p/.envrc", Kind: sandbox.Created, Type: sandbox.TypeFile, Warning: "why"}
	for _, held := range []bool{false, true} {
		c.Held = held
		want := fmt.Sprintf("/p/.envrc  ! why%s", map[bool]string{true: " (apply holds it back)"}[held])
		if line := ChangeLine(c); !strings.HasSuffix(line, want) {
			t.Errorf("got %q, want %q", line, want)
		}
	}
}

func TestAppliedPathsAreNotHeldBack(t *testing.T) {
	var out strings.Builder
	changes := []sandbox.Change{{Path: "/p/.envrc", Kind: sandbox.Created, Warning: "why", Held: true}}
	(&Conversation{Out: &out}).Plan(&sandbox.Applied{Changes: changes})
	if got := out.String(); !strings.HasSuffix(got, "/p/.envrc  ! why\n") {
		t.Errorf("the plan is %q", got)
	}
	if !changes[0].Held {
		t.Error("the caller's change was altered")
	}
}
