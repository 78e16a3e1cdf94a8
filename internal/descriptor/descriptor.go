// Package descriptor opens, passes and closes file descriptors. Paths are opened by
// openat2(2) (Linux 5.6), since untrusted code may have made the files. Every set of
// RESOLVE_ flags that the runtime uses has its name here.
package descriptor

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Way says how the kernel goes along a path.
type Way uint64

const (
	// NoMagicLinks follows symbolic links, but none of the kernel's own, as in
	// /proc/PID/fd.
	NoMagicLinks Way = unix.RESOLVE_NO_MAGICLINKS
	// NoLinks follows no link.
	NoLinks = NoMagicLinks | unix.RESOLVE_NO_SYMLINKS
	// Beneath follows no link and does not leave the directory.
	Beneath = NoLinks | unix.RESOLVE_BENEATH
	// OneMount is Beneath, and enters no other mount.
	OneMount = Beneath | unix.RESOLVE_NO_XDEV
	// InRoot follows no link. The directory is the root of the path: "/" and ".." lead to
	// it at most.
	InRoot = NoLinks | unix.RESOLVE_IN_ROOT
	// LinksInRoot is InRoot, but follows links within the root. It enters no other mount.
	LinksInRoot = NoMagicLinks | unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_XDEV
)

// Open opens a path below a directory, or below the working directory for unix.AT_FDCWD.
// The descriptor is closed on execve(2).
func Open(dir int, path string, way Way, flags int) (int, error) {
	return Create(dir, path, way, flags, 0)
}

// Create is Open with the mode of a file that O_CREAT makes.
func Create(dir int, path string, way Way, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: uint64(way)}
	for again := 0; ; {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && again < mostAgain: // openat2(2): something was renamed meanwhile
			again++
		default:
			return fd, err
		}
	}
}

// mostAgain bounds the tries of an open. A file with a lease of another process has the error of a rename, too, and
// the holder can keep the lease for 45 seconds (fcntl(2), F_SETLEASE).
const mostAgain = 1000

// OpenFile is Open for a file with the path as its name.
func OpenFile(dir int, path string, way Way, flags int) (*os.File, error) {
	fd, err := Open(dir, path, way, flags)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OpenDir opens a directory beneath another one for reading. It follows no link.
func OpenDir(dir *os.File, name string) (*os.File, error) {
	return OpenFile(int(dir.Fd()), name, Beneath, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

// OpenIn is Open below a directory that another goroutine may close meanwhile: its number
// may be another file's then.
func OpenIn(dir *os.File, path string, way Way, flags int) (fd int, err error) {
	err = Use(dir, func(number int) error {
		fd, err = Open(number, path, way, flags)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// ReadLink reads a symbolic link in a directory. An empty name is the link that dir itself is, opened with O_PATH.
func ReadLink(dir int, name string) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, target)
	if err != nil {
		return "", err
	}
	return string(target[:n]), nil
}

// Use calls f with the number of a file or socket that another goroutine may close
// meanwhile. Unlike File.Fd it does not change the mode of the file: that would let a
// terminal's master block for each process that has it. The error is f's, or os.ErrClosed.
func Use(file syscall.Conn, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if raw.Control(func(fd uintptr) { result = f(int(fd)) }) != nil {
		return os.ErrClosed // a RawConn does not say it as os.ErrClosed itself
	}
	return result
}

// Retry makes a system call again as long as a signal interrupts it.
func Retry[T any](call func() (T, error)) (T, error) {
	for {
		result, err := call()
		if !errors.Is(err, unix.EINTR) {
			return result, err
		}
	}
}

// Duplicate returns another descriptor of a file or socket, with the mode of the first.
func Duplicate(file syscall.Conn) (int, error) {
	fd := -1
	err := Use(file, func(from int) (err error) {
		fd, err = unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewSyscallError("dup", err)
	})
	return fd, err
}

// Pollable returns another descriptor of a file, for Go's poller: Close ends a Read.
func Pollable(file *os.File) (*os.File, error) {
	fd, err := Duplicate(file)
	if err == nil {
		err = os.NewSyscallError("fcntl", unix.SetNonblock(fd, true))
	}
	if err != nil {
		CloseFD(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

// Close closes files, of which each may be nil. There is no error to act on.
func Close(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// CloseFD closes numbers; a negative one is none. There is no error to act on.
func CloseFD(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// AtOnce calls f, which closes descriptors, and does not wait for sockets with SO_LINGER. The last
// close of a socket does not wait in a thread that ends (net/ipv4/af_inet.c:inet_release,
// PF_EXITING). So a thread gets a copy of the table of descriptors, and ends after f.
func AtOnce(f func()) {
	copied, closed := make(chan struct{}), make(chan struct{})
	go holdTable(copied, closed)
	<-copied
	f()
	close(closed)
}

// holdTable keeps a copy of the table of descriptors until closed is closed. Then its thread ends.
func holdTable(copied chan<- struct{}, closed <-chan struct{}) {
	runtime.LockOSThread() // and no unlock: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The Go runtime does not end the first thread, which would keep the copy. The next
		// goroutine gets another thread, because this thread is locked until the copy is made.
		made := make(chan struct{})
		go holdTable(made, closed)
		<-made
		runtime.UnlockOSThread()
		close(copied)
		return
	}
	_ = unix.Unshare(unix.CLONE_FILES) // without memory for it, the closes in f can take long
	close(copied)
	<-closed
}
