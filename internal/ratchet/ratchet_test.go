package ratchet

import (
	"os"
	"path/filepath"
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
