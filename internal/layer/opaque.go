package layer

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// maxOpaque bounds the list of a layer's opaque directories, in bytes.
const maxOpaque = 32 << 20

// OpaqueDirs are the paths of a layer's opaque directories, in order; never nil
// without an error. What lies too deep for Changes is left out, as there.
func OpaqueDirs(ctx context.Context, dir *os.File) ([]string, error) {
	paths, size := []string{}, 0
	var failed error
	w := walker{
		Stack: &Stack{Layers: []Layer{{Dir: dir}}},
		o:     Options{Names: true},
		opaque: func(path string) {
			paths = append(paths, path)
			size += len(path) + 1
		},
		yield: func(_ spec.Change, err error) bool {
			switch {
			case ctx.Err() != nil:
				failed = ctx.Err()
			case size > maxOpaque:
				failed = fmt.Errorf("the paths of its replaced directories have more than %d bytes; look at them as root", maxOpaque)
			case !errors.Is(err, errDepth):
				failed = err
			}
			return failed == nil
		},
	}
	w.walk()
	if failed != nil {
		return nil, failed
	}
	return paths, nil
}

var errUntrusted = errors.New("the layer's opaque directories are not known: only root may read them, others need to be told")

// mayRead refuses layers of which the kernel would not tell that directories
// are opaque: what they hide would seem to be there still.
func (s *Stack) mayRead() error {
	for _, l := range s.Layers {
		if l.Opaque == nil && !readsTrusted() {
			return errUntrusted
		}
	}
	return nil
}

// readsTrusted tells whether the kernel shows trusted.* attributes: xattr(7),
// "Trusted extended attributes".
func readsTrusted() bool {
	var sets [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0 && !userns.RunningInUserNS()
}
