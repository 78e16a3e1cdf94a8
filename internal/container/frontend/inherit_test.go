package frontend

import (
	"os"
	"testing"
)

// A number is open in this program, but not because the caller passed it.
func TestOwnDescriptorsAreNotPreserved(t *testing.T) {
	f, err := os.Open("/dev/null") // close-on-exec, as all that Go opens
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := int(f.Fd()) - FirstFD + 1
	if _, err := inheritedFiles(nil, n); err == nil {
		t.Errorf("descriptor %d was taken", f.Fd())
	}
}
