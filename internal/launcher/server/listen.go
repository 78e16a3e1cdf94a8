package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// A Listener is a socket that clients connect to. Close removes it.
type Listener struct {
	*net.UnixListener
	path string
	lock *os.File
}

// SameGroup leaves a socket with the group of the process.
const SameGroup = -1

// Listen makes the socket, with a mode and a group, in a directory that exists. Listen replaces a
// stale socket, on which no process listens, and no other file.
func Listen(path string, mode fs.FileMode, group int) (_ *Listener, err error) {
	if path, err = hostpaths.Absolute(path); err != nil {
		return nil, err
	}
	if err := checkDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	// If two launchers find the same stale socket, only one of them may replace it.
	lock, err := lockSocket(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(lock.Name()), lock.Close())
		}
	}()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := listen(path, mode, group)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &Listener{l, path, lock}, nil
}

// checkDir refuses a directory in which another user can replace the socket: a directory that
// another user owns, or that others can write to and that has no sticky bit as /tmp has.
func checkDir(dir string) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory %s of the socket does not exist; make it first, or name another --socket", dir)
	case err != nil:
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("%s belongs to user %d, and that user could answer in the launcher's place: name another directory", dir, st.Uid)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%s can be written to by others, and these could answer in the launcher's place: name another directory", dir)
	}
	return nil
}

// lockSocket makes and locks a file beside the socket. The lock lasts as long as the Listener.
func lockSocket(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		got, err := descriptor.TryLock(f)
		hasName := false
		if got {
			hasName, err = descriptor.HasName(f)
		}
		if hasName {
			return f, nil
		}
		f.Close()
		switch {
		case err != nil:
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		case !got:
			return nil, fmt.Errorf("%s: another launcher listens there", path)
		}
		// The last holder has removed the file meanwhile.
	}
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket; remove it, or name another path", path)
	}
	err = descriptor.ShortPath(path, func(short string) error {
		conn, err := net.Dial("unix", short)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err == nil {
		return fmt.Errorf("%s: somebody listens there", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("check for a launcher on %s: %w", path, err)
	}
	return os.Remove(path)
}

func listen(path string, mode fs.FileMode, group int) (*net.UnixListener, error) {
	var l net.Listener
	err := descriptor.ShortPath(path, func(short string) (err error) {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			// The file gets the socket's mode, less the umask (unix(7)). So no other user can
			// connect before openSocket.
			var failed error
			err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) })
			return errors.Join(err, failed)
		}}
		l, err = config.Listen(context.Background(), "unix", short)
		return err
	})
	if err != nil {
		return nil, err
	}
	listener := l.(*net.UnixListener)
	listener.SetUnlinkOnClose(false) // its name of the socket may be a short path
	if err := openSocket(path, mode, group); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// openSocket gives a socket its group, and then its mode. It does not follow links.
func openSocket(path string, mode fs.FileMode, group int) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is no socket any more: somebody has replaced it", path)
	}
	held := "/proc/self/fd/" + strconv.Itoa(fd)
	if err := os.Chown(held, -1, group); err != nil {
		return fmt.Errorf("give %s the group %d: %w", path, group, err)
	}
	return os.Chmod(held, mode)
}

// Close closes and removes the socket.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if removed := os.Remove(l.path); !errors.Is(removed, fs.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	// Remove the lock file before the unlock: a holder of the lock must have the file with this
	// name.
	return errors.Join(err, os.Remove(l.lock.Name()), l.lock.Close())
}
