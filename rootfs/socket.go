package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
)

// A bound socket is a file at which a command can connect to a server of the host. connect(2)
// needs the right to write to the file, but no writable mount. The mount is read-only, so nobody
// inside can change the mode or the owner of the socket.

// checkSocket decides on a source that is a socket.
func (s *source) checkSocket(r *hostpaths.Rules) error {
	switch {
	case !r.Sockets:
		return s.forbidden("is a socket; show it with a bind")
	case s.writable:
		return s.forbidden("is a socket, which is always shown read-only; leave :rw out: a command can connect in any case")
	case s.real == hostpaths.LauncherSocket, s.isOwnListener():
		return s.forbidden("is a socket of the runtime itself, through which sandboxes are made")
	}
	s.socket = true
	return nil
}

// isOwnListener says whether this process listens on the socket.
func (s *source) isOwnListener() bool {
	has, err := identify(s.fd)
	if err != nil {
		return true
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return true
	}
	return slices.ContainsFunc(open, func(e os.DirEntry) bool {
		number, _ := strconv.Atoi(e.Name())
		listens, err := unix.GetsockoptInt(number, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil || listens == 0 {
			return false
		}
		at, _ := unix.Getsockname(number)
		name, isUnix := at.(*unix.SockaddrUnix)
		if !isUnix || !path.IsAbs(name.Name) {
			return false
		}
		fd, err := descriptor.Open(unix.AT_FDCWD, name.Name, descriptor.NoMagicLinks, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return false
		}
		defer descriptor.CloseFD(fd)
		own, err := identify(fd)
		return err == nil && own.inode == has.inode && own.device() == has.device()
	})
}

// noteSocket notes the access that a bound socket gives.
func (r *Root) noteSocket(s *source) {
	host := r.ids.Host().UID
	if slices.Contains(engineSockets, path.Base(s.real)) {
		r.addNote("%s is the socket of a container engine: a command in the sandbox that connects to it has the rights of root on the host", s.path)
		return
	}
	r.addNote("%s is a socket: a command in the sandbox can use its server, which sees user %d of the host. A server that serves one user only, as ssh-agent, refuses it", s.path, host)
}

// engineSockets are the names of sockets on which container engines and virtual machine managers
// take orders.
var engineSockets = []string{
	"docker.sock", "containerd.sock", "crio.sock", "podman.sock", "buildkitd.sock", "libvirt-sock", "lxd.socket", "incus.socket",
}

// mayShow checks by the peer's descriptor that the peer may use a file: read it, list it, or
// connect to it.
func (p *Peer) mayShow(path string, file *os.File) error {
	var st unix.Stat_t
	err := descriptor.Use(file, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil {
		return fmt.Errorf("look at the descriptor of %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return openedForReading(path, file, p)
	}
	err = p.withRights(func() error {
		return descriptor.Use(file, func(fd int) error {
			return unix.Faccessat(fd, "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
		})
	})
	if errors.Is(err, unix.EACCES) {
		return &ForbiddenError{Path: path, Rule: fmt.Sprintf("is a socket to which user %d may not connect", p.UID)}
	}
	if err != nil {
		return fmt.Errorf("look at the rights to %s: %w", path, err)
	}
	return nil
}
