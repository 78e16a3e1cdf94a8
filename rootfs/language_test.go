package rootfs

import (
	"path/filepath"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/languages"
)

// A prefix found is one that can be mounted, and what is in it runs.
func TestPrefixIsUsable(t *testing.T) {
	testhost.PrivateMounts(t)
	dir := filepath.Join(ownedDir(t, 1234, 1234), "python")
	testhost.Python(t, dir)
	c := testConfig()
	c.MountPoints = nil // the prefix lies below /tmp
	found, err := languages.Find(dir+"/bin:/usr/bin", "/nowhere", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Prefixes = found.Prefixes
	r, m := mounted(t, c)
	if got := inside(t, r, m.Path, 1000, found.Path[0]+"/python3"); got != "python" {
		t.Errorf("%q", got)
	}
}
