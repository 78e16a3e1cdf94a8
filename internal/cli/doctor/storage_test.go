package doctor

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestAMissingTMPDIRIsNamed(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if err := tryImage(); err == nil || !strings.Contains(err.Error(), "the variable TMPDIR") {
		t.Error(err)
	}
}
