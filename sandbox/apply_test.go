package sandbox

import (
	"strings"
	"testing"
)

func TestAnErrorNamesSoManyConflicts(t *testing.T) {
	e := &ConflictError{Conflicts: make([]Unapplied, maxNamed)}
	if lines := strings.Split(e.Error(), "\n"); len(lines) != 1+maxNamed {
		t.Errorf("%d lines", len(lines))
	}
	e.Conflicts = make([]Unapplied, maxNamed+1000)
	if text := e.Error(); strings.Count(text, "\n") != 1+maxNamed || !strings.HasSuffix(text, "\nand 1000 more") {
		t.Errorf("%s", text)
	}
}
