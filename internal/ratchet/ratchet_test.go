package ratchet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

func TestLevelsOnlyRise(t *testing.T) {
	l := Levels{t.TempDir(), "hash-"}
	for _, step := range []struct{ to, want spec.Sensitivity }{
		{spec.SensitivityPublic, spec.SensitivityPublic},
		{spec.SensitivityConfidential, spec.SensitivityConfidential},
		{spec.SensitivityInternal, spec.SensitivityConfidential},
		{spec.SensitivityPublic, spec.SensitivityConfidential},
		{spec.SensitivitySecret, spec.SensitivitySecret},
	} {
		if err := l.Raise("box", Level{step.to, 7}); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Of("box"); err != nil || got.Sensitivity != step.want {
			t.Errorf("after %s: %+v, %v", step.to, got, err)
		}
	}
	if got, err := l.Of("other"); err != nil || got.Sensitivity != spec.SensitivityPublic {
		t.Errorf("another sandbox: %+v, %v", got, err)
	}
	for range 2 {
		if err := l.Forget("box"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := l.Of("box"); err != nil || got.Sensitivity != spec.SensitivityPublic {
		t.Errorf("after the removal: %+v, %v", got, err)
	}
}

// A file that cannot be read is no public sandbox.
func TestADamagedLevelIsAnError(t *testing.T) {
	l := Levels{t.TempDir(), "hash-"}
	if err := l.Raise("box", Level{Sensitivity: spec.SensitivitySecret}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"sensitivity":`} {
		if err := os.WriteFile(filepath.Join(l.Data, dirName, "hash-box"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Of("box"); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
