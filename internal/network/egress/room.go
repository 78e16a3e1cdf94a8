package egress

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// checkRoomLocked refuses sockets of a box for which the worker has no descriptors. A new box is nil.
func (p *parent) checkRoomLocked(b *box, sockets int) error {
	if p.last == math.MaxUint32 {
		return errors.New("there were too many sandboxes; end all sandboxes of the proxied network")
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	needed, others := uint64(link.FilesOfWorker+link.FilesPerConnection+sockets), 0
	for _, other := range p.boxes {
		if other != b {
			others++
			needed += uint64(len(other.files) + link.FilesPerConnection)
		}
	}
	if needed > files.Max {
		return fmt.Errorf("%d other sandboxes are in the proxied network; raise the hard limit of open files, which is %d, for more", others, files.Max)
	}
	return nil
}
