package languages

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// lookFor is Find on a host with free descriptors.
func lookFor(pathList, home string, binds []Bind, absences *Absences) Found {
	found, err := Find(pathList, home, binds, absences)
	if err != nil {
		panic(err)
	}
	return found
}

// Too few descriptors do not show that a directory of PATH is missing.
func TestAShortageOfDescriptorsIsAnError(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(bin+"/go", nil, 0o755); err != nil {
		t.Fatal(err)
	}
	all := lookFor(bin, "/nowhere", nil, nil)
	for free := range 4 {
		var found Found
		var err error
		testhost.WithFreeDescriptors(t, free, func() { found, err = Find(bin, "/nowhere", nil, nil) })
		if err != nil && !errors.Is(err, unix.EMFILE) || err == nil && len(found.Notes) != len(all.Notes) {
			t.Errorf("%d free descriptors: %+v, %v; want %+v", free, found, err, all)
		}
		if free == 0 && err == nil {
			t.Error("no error without descriptors")
		}
	}
}
