package rootfs

import (
	"errors"
	"fmt"
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"golang.org/x/sys/unix"
)

// heldSource makes a source of a descriptor that somebody else opened for path,
// in place of opening that. The file stays its owner's.
func heldSource(path string, file *os.File, writable bool, as ownerView, r *hostpaths.Rules, peer *Peer) (*source, error) {
	if peer != nil {
		if err := peer.mayShow(path, file); err != nil {
			return nil, err
		}
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of %s: %w", path, err)
	}
	s, err := newSource(path, fd, writable, as, r)
	if err != nil {
		return nil, err
	}
	s.peer = peer
	if err = s.isHere(); err == nil {
		err = peer.limit(s)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func openedForReading(path string, file *os.File, peer *Peer) error {
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("look at the descriptor of %s: %w", path, err)
	}
	if flags&unix.O_PATH != 0 || flags&unix.O_ACCMODE == unix.O_WRONLY {
		return &ForbiddenError{Path: path, Rule: fmt.Sprintf("was not opened for reading, so nothing says that user %d may read it", peer.UID)}
	}
	return nil
}

// isHere refuses a source in another mount namespace than the calling thread's:
// open_tree(2) would refuse it with an error that says nothing. isHere also refuses a
// source without a path, mounted over or detached, whose path would mislead the rules.
func (s *source) isHere() error {
	elsewhere := fmt.Sprintf("%s is another file than the launcher finds at %s: open it in the launcher's mount namespace, where nothing is mounted over it", s.path, s.real)
	fd, err := descriptor.Open(unix.AT_FDCWD, s.real, descriptor.NoLinks, unix.O_PATH)
	if err != nil {
		return fmt.Errorf("%s: %w", elsewhere, err)
	}
	defer descriptor.CloseFD(fd)
	here, err := identify(fd)
	if err != nil {
		return fmt.Errorf("statx %s: %w", s.real, err)
	}
	opened, err := identify(s.fd)
	if err != nil {
		return fmt.Errorf("statx %s: %w", s.path, err)
	}
	if here != opened {
		return errors.New(elsewhere)
	}
	return nil
}

// identity tells an object in a mount from all others. Mount ids are unique in
// the kernel (statx(2), Linux 5.8).
type identity struct {
	mount, inode uint64
	major, minor uint32
}

func identify(fd int) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_MNT_ID, &st); err != nil {
		return identity{}, err
	}
	return identity{st.Mnt_id, st.Ino, st.Dev_major, st.Dev_minor}, nil
}
