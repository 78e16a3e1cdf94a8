package overlay

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Without descriptors the open files of a process cannot be listed. The process may use a directory then.
func TestTooManyOpenFilesDoNotHideTheUseOfADirectory(t *testing.T) {
	for name, use := range map[string]func() (string, error){
		"a renamed directory": func() (string, error) { return rememberer{}.usedBy(fmt.Sprintf("/proc/%d", os.Getpid())) },
		"an old mount": func() (string, error) {
			return firstUse(os.Getpid(), func(thread string) (string, error) { return threadUses(thread, nil) })
		},
	} {
		testhost.WithFreeDescriptors(t, 0, func() {
			if where, err := use(); !errors.Is(err, unix.EMFILE) {
				t.Errorf("%s: %q, %v", name, where, err)
			}
		})
		if where, err := use(); where != "" || err != nil {
			t.Errorf("%s, afterwards: %q, %v", name, where, err)
		}
	}
}
