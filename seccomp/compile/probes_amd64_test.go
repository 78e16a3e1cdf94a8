package compile

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// archProbes are calls that arm64 does not have.
func archProbes() []probe {
	const setuid, create = 0o4755, unix.O_CREAT | unix.O_RDWR
	return []probe{
		refused("modify_ldt", func(string) error {
			var table [16]byte
			return call(unix.SYS_MODIFY_LDT, 0, pointer(&table), 16)
		}),
		refused("iopl", func(string) error { return call(unix.SYS_IOPL, 0) }),
		refused("ioperm", func(string) error { return call(unix.SYS_IOPERM, 0, 0, 0) }),
		refused("chmod", inDir("q", true, unix.SYS_CHMOD, 0, 0, setuid)),
		refused("creat", inDir("r", false, unix.SYS_CREAT, 0, 0, setuid)),
		refused("open", inDir("s", false, unix.SYS_OPEN, 0, 0, create, setuid)),
		refused("mknod", inDir("t", false, unix.SYS_MKNOD, 0, 0, unix.S_IFREG|setuid, 0)),
		allowed("chmod of a file", inDir("u", true, unix.SYS_CHMOD, 0, 0, 0o755)),
		allowed("open of a new file", inDir("v", false, unix.SYS_OPEN, 0, 0, create, 0o644)),
		allowed("open of a file", inDir("w", true, unix.SYS_OPEN, 0, 0, unix.O_RDWR, ^uintptr(0))),
		allowed("mkdir, rename, rmdir", func(dir string) error {
			if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
				return err
			}
			if err := unix.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "y")); err != nil {
				return err
			}
			return unix.Rmdir(filepath.Join(dir, "y"))
		}),
	}
}
