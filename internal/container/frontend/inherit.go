package frontend

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FirstFD is the first descriptor after the standard three.
const FirstFD = 3 // after stdin, stdout, stderr

// inheritedFiles are open descriptors of this program, from 3 on, that its
// caller meant for the container: sockets by systemd's protocol, then those of
// --preserve-fds.
func inheritedFiles(listen []*os.File, preserve int) ([]*os.File, error) {
	files := slices.Clone(listen)
	first := FirstFD + len(listen)
	for fd := first; fd < first+preserve; fd++ {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC != 0 {
			// Nothing inherited is close-on-exec: this one is our own.
			err = unix.EBADF
		}
		if err != nil {
			return nil, fmt.Errorf("unable to stat preserved-fd %d (of %d): %w", fd-first, preserve, err)
		}
		files = append(files, os.NewFile(uintptr(fd), "preserved "+strconv.Itoa(fd)))
	}
	return files, nil
}

// ListenFDs returns the sockets that the caller has passed as sd_listen_fds(3) describes, if they
// are for this process. The environment stays as it is. go-systemd has the same function, but its
// package links crypto/tls, and each start of the program would pay for that (ADR 1).
func ListenFDs() []*os.File {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil {
		return nil
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	var files []*os.File
	for fd := FirstFD; fd < FirstFD+n; fd++ {
		unix.CloseOnExec(fd) // no hook inherits the socket by accident
		name := "listen " + strconv.Itoa(fd)
		if i := fd - FirstFD; i < len(names) && names[i] != "" {
			name = names[i]
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files
}

// dialSocket connects to a unix stream socket. The caller closes the file.
func dialSocket(path string) (*os.File, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*net.UnixConn).File()
}
