package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// installation is a Python under dir.
func installation(t *testing.T, dir string) string {
	t.Helper()
	write(t, dir+"/bin/python3.12", "#!/bin/sh\necho python\n")
	if err := os.Chmod(dir+"/bin/python3.12", 0o755); err != nil {
		t.Fatal(err)
	}
	symlink(t, "python3.12", dir+"/bin/python3")
	write(t, dir+"/lib/python3.12/os.py", "")
	return dir
}

// A prefix found is one that can be mounted, and what is in it runs.
func TestPrefixIsUsable(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := filepath.Join(ownedDir(t, 1234, 1234), "python")
	installation(t, dir)
	c := testConfig()
	c.MountPoints = nil // the prefix lies below /tmp
	found := languages.Find(dir+"/bin:/usr/bin", "/nowhere", nil)
	c.Prefixes = found.Prefixes
	r, m := mounted(t, c)
	if got := inside(t, r, m.Path, 1000, found.Path[0]+"/python3"); got != "python" {
		t.Errorf("%q", got)
	}
}
