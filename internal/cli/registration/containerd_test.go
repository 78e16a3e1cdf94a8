package registration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

func TestTheInstalledContainerdTellsItsVersion(t *testing.T) {
	testhost.NeedRoot(t, "a program that only root can change")
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	program := filepath.Join(dir, "containerd")
	for says, major := range map[string]int{
		"containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7":               2,
		"containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1": 1,
		"containerd": 0, "": 0, "containerd x vX": 0,
	} {
		testhost.Script(t, program, "echo '"+says+"'")
		if got := installedContainerd(); got != major {
			t.Errorf("%q: %d, want %d", says, got, major)
		}
	}
	testhost.Script(t, program, "echo 'containerd x v2.0.0'")
	if err := os.Chmod(program, 0o777); err != nil {
		t.Fatal(err)
	}
	if got := installedContainerd(); got != 0 {
		t.Errorf("a program that everybody can change was run: %d", got)
	}
}
