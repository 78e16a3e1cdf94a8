package store

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// An image would get a second device if its device were not found.
func TestTooManyOpenFilesDoNotHideALoopDevice(t *testing.T) {
	image, err := os.Create(t.TempDir() + "/image")
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	testhost.WithFreeDescriptors(t, 0, func() {
		if device, err := attached(image); !errors.Is(err, unix.EMFILE) {
			t.Errorf("%v, %v", device, err)
		}
	})
}
