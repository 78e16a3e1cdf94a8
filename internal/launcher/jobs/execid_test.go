package jobs

import (
	"testing"
)

// An id of an exec is a name of a directory: only the form that String writes is an id.
func TestExecIDs(t *testing.T) {
	e := ExecID{Pid: 4194303, Start: 1<<63 + 5, N: 1<<32 - 1}
	if got, ok := parseExec(e.String()); !ok || got != e {
		t.Errorf("%v became %v, %t", e, got, ok)
	}
	if got, ok := parseLeaf(e.Leaf()); !ok || got != e {
		t.Errorf("%v became %v, %t", e.Leaf(), got, ok)
	}
	for _, text := range []string{"", "1", "1-2", "1-2-3-4", "01-2-3", "A-2-3", "-1-2-3", "1--3", "zzzzzzzz-2-3", "1-2-3/", "agent", "../1-2-3"} {
		if e, ok := parseExec(text); ok {
			t.Errorf("%q is the exec %v", text, e)
		}
		if e, ok := parseLeaf(text); ok {
			t.Errorf("%q is the leaf of %v", text, e)
		}
	}
	s, other := newTestSessions(t), newTestSessions(t)
	first, err := s.newExec()
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.newExec()
	if err != nil || second == first {
		t.Fatalf("%v after %v, %v", second, first, err)
	}
	if !s.numbered(first) || !s.numbered(second) || other.numbered(first) || s.numbered(execNumbered(1)) || !first.ownerLives() || execNumbered(1).ownerLives() {
		t.Error("an exec counts as one of another launcher")
	}
	second.N++
	if s.numbered(second) {
		t.Error("an exec that was not made yet counts as made")
	}
}
