package frontend

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// notifyDir is where the container finds the socket of its notifyProxy.
const notifyDir = "/run/notify"

// A NotifyProxy lets a container tell the host's service manager that it is ready
// (sd_notify(3)). The container gets a socket of its own, and the proxy passes on READY only. A
// nil proxy does nothing: there is no service manager.
type NotifyProxy struct {
	host   string // $NOTIFY_SOCKET
	dir    string // on the host; inside it is notifyDir
	socket *os.File
}

// NewNotifyProxy returns the proxy of a container, nil if no service manager listens.
func NewNotifyProxy(root, id string) *NotifyProxy {
	host := os.Getenv("NOTIFY_SOCKET")
	if host == "" {
		return nil
	}
	return &NotifyProxy{host: host, dir: filepath.Join(root, id, "notify")}
}

// addTo shows the socket to the container that spec describes.
func (n *NotifyProxy) addTo(spec *specs.Spec) {
	if n == nil {
		return
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: notifyDir,
		Source:      n.dir,
		Options:     []string{"bind", "nosuid", "noexec", "nodev", "ro"},
	})
	spec.Process.Env = append(spec.Process.Env, "NOTIFY_SOCKET="+filepath.Join(notifyDir, "notify.sock"))
}

// makeDir makes the mounted directory. It goes with the container's state directory.
func (n *NotifyProxy) makeDir() error {
	if n == nil {
		return nil
	}
	return os.Mkdir(n.dir, 0o755)
}

// Listen makes the socket. It must exist before the container's command runs.
func (n *NotifyProxy) Listen() error {
	if n == nil {
		return nil
	}
	path := filepath.Join(n.dir, "notify.sock")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify socket: %w", err)
	}
	if err := os.Chmod(path, 0o777); err != nil { // the container's user is any
		return errors.Join(err, socket.Close())
	}
	defer func() { _ = socket.Close() }()
	if n.socket, err = socket.File(); err != nil {
		return fmt.Errorf("notify socket: %w", err)
	}
	return nil
}

// Relay passes the container's first READY on and names mainPid as the process
// to watch. Relay returns after that, or when the process behind pidfd has ended. The
// proxy must not be nil.
func (n *NotifyProxy) Relay(pidfd *os.File, mainPid int) error {
	defer n.socket.Close()
	ready, err := n.awaitReady(pidfd)
	if err != nil || ready == "" {
		return err
	}
	host, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.host, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify %s: %w", n.host, err)
	}
	defer func() { _ = host.Close() }()
	for _, message := range []string{ready, "MAINPID=" + strconv.Itoa(mainPid)} {
		if _, err := host.Write([]byte(message + "\n")); err != nil {
			return fmt.Errorf("notify %s: %w", n.host, err)
		}
	}
	return awaitBarrier(host)
}

// awaitReady returns the line READY=..., or "" once the process has ended
// without one.
func (n *NotifyProxy) awaitReady(pidfd *os.File) (string, error) {
	buf := make([]byte, 4096)
	for {
		fds := []unix.PollFd{
			{Fd: int32(n.socket.Fd()), Events: unix.POLLIN},
			{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}, // readable once it has ended
		}
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("notify socket: poll: %w", err)
		}
		if fds[0].Revents == 0 {
			return "", nil
		}
		got, err := n.socket.Read(buf)
		if err != nil {
			return "", fmt.Errorf("notify socket: %w", err)
		}
		for line := range strings.SplitSeq(string(buf[:got]), "\n") {
			if strings.HasPrefix(line, "READY=") {
				return line, nil
			}
		}
	}
}

// awaitBarrier returns when the service manager has worked through all earlier messages,
// as sd_notify_barrier(3): it closes a pipe that it is given.
func awaitBarrier(host *net.UnixConn) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = sendWithFD(host, "BARRIER=1", w)
	w.Close()
	if err != nil {
		return fmt.Errorf("notify barrier: %w", err)
	}
	// A manager that knows no barrier keeps the pipe; then it is as it is.
	if err := r.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	_, _ = r.Read(make([]byte, 1))
	return nil
}

// sendWithFD is UnixConn.WriteMsgUnix for connected datagram sockets, which
// that refuses.
func sendWithFD(conn *net.UnixConn, message string, f *os.File) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		serr = unix.Sendmsg(int(fd), []byte(message), unix.UnixRights(int(f.Fd())), nil, 0)
		return !errors.Is(serr, unix.EAGAIN)
	})
	return errors.Join(err, serr)
}
