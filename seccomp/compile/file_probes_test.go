package compile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// onTerminal makes the ioctl on a new terminal, which becomes the controlling
// one of this session, as far as it has none.
func onTerminal(request uintptr) func(string) error {
	return func(string) error {
		master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		// Left open: closing it would hang up the session.
		if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
		if err != nil {
			return err
		}
		slave, err := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		argument := make([]byte, 256)
		return call(unix.SYS_IOCTL, uintptr(slave), request, pointer(&argument[0]))
	}
}

func terminalProbes() []probe {
	return []probe{
		refused("TIOCSTI", onTerminal(unix.TIOCSTI)),
		refused("TIOCSTI, high bits set", onTerminal(unix.TIOCSTI|highBits)),
		refused("TIOCLINUX", onTerminal(unix.TIOCLINUX)),
		refused("TIOCLINUX, high bits set", onTerminal(unix.TIOCLINUX|highBits)),
		refused("TIOCSETD", onTerminal(unix.TIOCSETD)),
		allowed("TCGETS", onTerminal(unix.TCGETS)),
		allowed("TIOCGWINSZ", onTerminal(unix.TIOCGWINSZ)),
		allowed("TIOCSWINSZ", onTerminal(unix.TIOCSWINSZ)),
		allowed("FIONREAD", onTerminal(unix.TIOCINQ)),
		notStrict("SIOCGIFCONF", onTerminal(unix.SIOCGIFCONF)),
		notStrict("an ioctl of another driver", onTerminal(0xdeadbeef)),
	}
}

// inDir makes the call with a path in dir as argument index, which exists or
// not.
func inDir(file string, exists bool, number uintptr, index int, args ...uintptr) func(string) error {
	return func(dir string) error {
		path := filepath.Join(dir, file)
		if exists {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
		}
		name, err := unix.BytePtrFromString(path)
		if err != nil {
			return err
		}
		args[index] = pointer(name)
		return call(number, args...)
	}
}

// at is AT_FDCWD, which plays no part where the path is absolute.
const at = ^uintptr(99)

func fileProbes() []probe {
	const (
		setuid, setgid = 0o4755, 0o2755
		create, file   = unix.O_CREAT | unix.O_RDWR, unix.S_IFREG
	)
	return []probe{
		refused("fchmodat to set-user-id", inDir("a", true, unix.SYS_FCHMODAT, 1, at, 0, setuid)),
		refused("fchmodat to set-group-id", inDir("b", true, unix.SYS_FCHMODAT, 1, at, 0, setgid)),
		refused("fchmodat, high bits set", inDir("c", true, unix.SYS_FCHMODAT, 1, at, 0, setuid|highBits)),
		refused("fchmodat2", inDir("d", true, unix.SYS_FCHMODAT2, 1, at, 0, setuid, 0)),
		refused("fchmod", func(dir string) error {
			f, err := os.Create(filepath.Join(dir, "e"))
			if err != nil {
				return err
			}
			defer f.Close()
			return call(unix.SYS_FCHMOD, f.Fd(), setuid)
		}),
		refused("fchmodat of a directory to set-group-id", func(dir string) error {
			path := filepath.Join(dir, "f")
			if err := os.Mkdir(path, 0o700); err != nil {
				return err
			}
			return inDir("f", false, unix.SYS_FCHMODAT, 1, at, 0, setgid)(dir)
		}),
		refused("openat of a new set-user-id file", inDir("g", false, unix.SYS_OPENAT, 1, at, 0, create, setuid)),
		refused("openat, high bits set", inDir("h", false, unix.SYS_OPENAT, 1, at, 0, create|highBits, setuid|highBits)),
		refused("openat of a nameless set-user-id file", inDir(".", false, unix.SYS_OPENAT, 1, at, 0, unix.O_TMPFILE|unix.O_RDWR, setuid)),
		refused("mknodat of a set-user-id file", inDir("i", false, unix.SYS_MKNODAT, 1, at, 0, file|setuid, 0)),
		absent("openat2 of a set-user-id file", func(dir string) error {
			how := [3]uint64{create, setuid, 0} // struct open_how: flags, mode, resolve.
			return inDir("j", false, unix.SYS_OPENAT2, 1, at, 0, pointer(&how), 24)(dir)
		}),
		allowed("fchmodat", inDir("k", true, unix.SYS_FCHMODAT, 1, at, 0, 0o1777)),
		allowed("openat of a new file", inDir("l", false, unix.SYS_OPENAT, 1, at, 0, create, 0o666)),
		allowed("openat of a file, mode unset", inDir("m", true, unix.SYS_OPENAT, 1, at, 0, unix.O_RDONLY, ^uintptr(0))),
		allowed("openat of a directory", inDir(".", false, unix.SYS_OPENAT, 1, at, 0, unix.O_DIRECTORY, ^uintptr(0))),
		allowed("openat of a nameless file", inDir(".", false, unix.SYS_OPENAT, 1, at, 0, unix.O_TMPFILE|unix.O_RDWR, 0o600)),
		allowed("mknodat of a FIFO", inDir("n", false, unix.SYS_MKNODAT, 1, at, 0, unix.S_IFIFO|0o600, 0)),
		allowed("mkdirat drops set-id bits", inDir("o", false, unix.SYS_MKDIRAT, 1, at, 0, 0o6755)),
		allowed("memfd_create, execveat", func(string) error {
			name := []byte("x\x00")
			fd, err := callResult(unix.SYS_MEMFD_CREATE, pointer(&name[0]), unix.MFD_CLOEXEC)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			// An empty file is executed by nobody, and the call came through.
			empty := []byte("\x00")
			err = call(unix.SYS_EXECVEAT, uintptr(fd), pointer(&empty[0]), 0, 0, unix.AT_EMPTY_PATH)
			if errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.EACCES) {
				return nil
			}
			return err
		}),
		allowed("close_range, dup3", func(string) error {
			fd, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := unix.Dup3(fd, 900, unix.O_CLOEXEC); err != nil {
				return err
			}
			return errnoOnly(unix.CloseRange(900, 900, 0))
		}),
		allowed("copy_file_range, sendfile, splice", func(dir string) error {
			f, err := os.Create(filepath.Join(dir, "p"))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.ReadFrom(strings.NewReader("x"))
			return err
		}),
		notStrict("inotify", func(string) error { return closing(unix.InotifyInit1(unix.IN_CLOEXEC)) }),
		notStrict("message queue by key", func(string) error {
			const none = 99
			err := call(unix.SYS_MSGCTL, ^uintptr(0), none, 0)
			if errors.Is(err, unix.EINVAL) {
				return nil
			}
			return err
		}),
		notStrict("asynchronous I/O", func(string) error {
			err := call(unix.SYS_IO_DESTROY, 0)
			if errors.Is(err, unix.EINVAL) {
				return nil
			}
			return err
		}),
		notStrict("the clock of the host, read", func(string) error {
			var t unix.Timex
			_, err := unix.Adjtimex(&t)
			return err
		}),
		notStrict("syncfs", func(dir string) error {
			d, err := os.Open(dir)
			if err != nil {
				return err
			}
			defer d.Close()
			return unix.Syncfs(int(d.Fd()))
		}),
	}
}
