package rootfs

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// Each mount costs a start more than a copy.
func TestSmallFilesOfEtcAreCopies(t *testing.T) {
	dir := t.TempDir()
	testhost.WriteFile(t, dir+"/maven/m2.conf", "main is org\n")
	testhost.WriteFile(t, dir+"/xml/catalog", strings.Repeat("x", mostCopied+1))
	testhost.WriteFile(t, dir+"/timezone", "UTC\n")
	for name, want := range map[string]string{"maven/m2.conf": "main is org\n", "xml/catalog": "", "timezone": ""} {
		s, err := openSource(dir+"/"+name, false, asNobody, &hostpaths.Rules{})
		if err != nil {
			t.Fatal(err)
		}
		n, err := etcCopy(s, "", name)
		if err != nil || (n == nil) != (want == "") || n != nil && n.text != want {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
		s.close()
	}
}
