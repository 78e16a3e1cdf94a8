package ratchet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestLevelsOnlyRise(t *testing.T) {
	l, box := Levels{t.TempDir(), "hash-"}, Owner{"box", 7}
	for _, step := range []struct{ to, want spec.Sensitivity }{
		{spec.SensitivityPublic, spec.SensitivityPublic},
		{spec.SensitivityConfidential, spec.SensitivityConfidential},
		{spec.SensitivityInternal, spec.SensitivityConfidential},
		{spec.SensitivityPublic, spec.SensitivityConfidential},
		{spec.SensitivitySecret, spec.SensitivitySecret},
	} {
		if err := l.Raise(box, step.to); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Of(box); err != nil || got != step.want {
			t.Errorf("after %s: %s, %v", step.to, got, err)
		}
	}
	for _, other := range []Owner{{"other", 7}, {"box", 8}, {"box", 0}} {
		if err := l.Forget(other); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Of(other); err != nil || got != spec.SensitivityPublic {
			t.Errorf("%v: %s, %v", other, got, err)
		}
	}
	for range 2 {
		if got, err := l.Of(box); err != nil || got == spec.SensitivityPublic {
			t.Errorf("before the removal: %s, %v", got, err)
		}
		if err := l.Forget(box); err != nil {
			t.Fatal(err)
		}
		if err := l.Raise(box, spec.SensitivityInternal); err != nil {
			t.Fatal(err)
		}
	}
}

// A client can make sandboxes with a level and go away, any number of times. The levels of their names stay.
func TestLevelsOfAUserAreBounded(t *testing.T) {
	l := Levels{t.TempDir(), "hash-"}
	one := Owner{"one", 7}
	if err := l.Raise(one, spec.SensitivityInternal); err != nil {
		t.Fatal(err)
	}
	for n := range maxNames - 1 {
		if err := os.WriteFile(l.path(Owner{fmt.Sprint("name-", n), 7}), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Raise(Owner{"more", 7}, spec.SensitivityInternal); err == nil {
		t.Error("one more than the bound")
	}
	for _, o := range []Owner{one, {"more", 17}, {"more", 0}} {
		if err := l.Raise(o, spec.SensitivitySecret); err != nil {
			t.Errorf("%v: %v", o, err)
		}
	}
	if err := errors.Join(l.Forget(one), l.Raise(Owner{"more", 7}, spec.SensitivityInternal)); err != nil {
		t.Errorf("in the place of another: %v", err)
	}
}

// A file that cannot be read is no public sandbox.
func TestADamagedLevelIsAnError(t *testing.T) {
	l, box := Levels{t.TempDir(), "hash-"}, Owner{"box", 7}
	if err := l.Raise(box, spec.SensitivitySecret); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"sensitivity":`, "{}", `{"sensitivity":"later"}`} {
		if err := os.WriteFile(filepath.Join(l.Data, dirName, "hash-box@7"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Of(box); err == nil {
			t.Errorf("%q: %s", text, got)
		}
		if err := l.Raise(box, spec.SensitivitySecret); err == nil {
			t.Errorf("%q: raised", text)
		}
	}
}

// A process that is killed while it raises a level leaves a draft.
func TestDraftsAreRemoved(t *testing.T) {
	l := Levels{Data: t.TempDir(), Prefix: "p-"}
	if err := l.RemoveDrafts("box"); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"box", "box2"} {
		if err := l.Raise(Owner{id, 7}, spec.SensitivitySecret); err != nil {
			t.Fatal(err)
		}
		draft := filepath.Join(l.Data, dirName, ".p-"+Owner{id, 8}.String())
		if err := os.WriteFile(draft, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.RemoveDrafts("box"); err != nil {
		t.Error(err)
	}
	var left []string
	entries, err := os.ReadDir(filepath.Join(l.Data, dirName))
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{".p-box2@8", "p-box2@7", "p-box@7"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left: %q, %v; want %q", left, err, want)
	}
}
