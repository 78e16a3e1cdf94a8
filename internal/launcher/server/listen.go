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
)

// A Listener is a socket that clients connect to. Close removes it.
type Listener struct {
	*net.UnixListener
	path string
	lock *os.File
}

// Listen makes the socket, and its directory, which only the launcher's user may
// enter, if there is none. It takes the place of a socket that nobody listens on
// any more, and of nothing else.
func Listen(path string, mode fs.FileMode) (_ *Listener, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	if err := makeOwn(filepath.Dir(path)); err != nil {
		return nil, err
	}
	// Of two launchers that find the same old socket only one may replace it.
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
	l, err := listen(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &Listener{l, path, lock}, nil
}

// makeOwn makes a directory, or refuses one in which somebody else can put another
// socket in the place of this one: one that others own, or may write to and is not
// as /tmp.
func makeOwn(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	switch {
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("%s belongs to user %d, and that user could answer in the launcher's place: name another directory", dir, st.Uid)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%s can be written to by others, and these could answer in the launcher's place: name another directory", dir)
	}
	return nil
}

// lockSocket holds a file beside the socket, for as long as it is listened on.
func lockSocket(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && hasName(f) {
			return f, nil
		}
		f.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("%s: another launcher listens there", path)
		case err != nil:
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		// Its last holder has removed it meanwhile.
	}
}

// hasName says that a file still has its name.
func hasName(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(held, named)
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
		return fmt.Errorf("whether somebody listens on %s: %w", path, err)
	}
	return os.Remove(path)
}

func listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	var l net.Listener
	err := descriptor.ShortPath(path, func(short string) (err error) {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			// The file gets the socket's mode, less the umask (unix(7)): nobody
			// else can connect for a moment.
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
	listener.SetUnlinkOnClose(false) // the name it knows may be a short one
	if err := chmodSocket(path, mode); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// chmodSocket changes the mode of a socket, and of nothing that a link leads to.
func chmodSocket(path string, mode fs.FileMode) error {
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
	return os.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode)
}

// Close stops to listen, and removes the socket.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	if removed := os.Remove(l.path); !errors.Is(removed, fs.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	// While the lock is held: its holder has the file that others find.
	return errors.Join(err, os.Remove(l.lock.Name()), l.lock.Close())
}
