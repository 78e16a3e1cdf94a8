package descriptor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// UnixConn makes a connection of a file, and takes the file over.
func UnixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	if conn, ok := conn.(*net.UnixConn); ok {
		return conn, nil
	}
	return nil, errors.Join(errors.New("it is no connected socket of unix(7)"), conn.Close())
}

// UnixPair makes a connection of stream sockets, and the file of its other end.
func UnixPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	other := os.NewFile(uintptr(fds[1]), "launcher")
	conn, err := UnixConn(os.NewFile(uintptr(fds[0]), "launcher"))
	if err != nil {
		return nil, nil, errors.Join(err, other.Close())
	}
	return conn, other, nil
}

// maxSocketPath is the length of the longest path of a socket (unix(7)).
const maxSocketPath = 107

// ShortPath calls f with a name of the socket that fits into its address: where
// the path is too long, one through a descriptor of its directory.
func ShortPath(socket string, f func(short string) error) error {
	if len(socket) <= maxSocketPath {
		return f(socket)
	}
	dir, err := os.OpenFile(filepath.Dir(socket), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(socket)
	short := "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + name
	if over := len(short) - maxSocketPath; over > 0 {
		return fmt.Errorf("%s is too long for the name of a socket, by %d bytes: %w", name, over, unix.ENAMETOOLONG)
	}
	return f(short)
}

// Send sends a message with descriptors on a socket, and does not wait. A stream socket
// may take only the beginning of the message.
func Send(socket int, message []byte, fds ...int) (int, error) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return Retry(func() (int, error) {
		return unix.SendmsgN(socket, message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
}

// Received takes the descriptors out of control messages. It closes a pidfd of the sender: the
// sender can ask for one with each message, if the sender has this end of the socket open, too
// (include/net/scm.h:scm_pidfd_recv, SO_PASSPIDFD, Linux 6.5).
func Received(control []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		if h := messages[i].Header; h.Level == unix.SOL_SOCKET && h.Type == unix.SCM_PIDFD && len(messages[i].Data) >= 4 {
			CloseFD(int(int32(binary.NativeEndian.Uint32(messages[i].Data))))
			continue
		}
		// Messages without descriptors give an error that does not matter.
		more, _ := unix.ParseUnixRights(&messages[i])
		fds = append(fds, more...)
	}
	return fds, err
}
