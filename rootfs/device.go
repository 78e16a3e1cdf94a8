package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// Root users inside may put a few small files into /dev. Other file systems are
// mounted below it.
const (
	deviceBytes  = "64k"
	deviceInodes = "256"
)

// sharedDevices is the note of a sandbox without device nodes of its own.
const sharedDevices = "the nodes in /dev are the host's: their locks and times reach the host; " +
	"start the launcher with CAP_MKNOD, and without a device cgroup that forbids nodes"

// device is a node by its number, in Documentation/admin-guide/devices.txt.
type device struct {
	name         string
	major, minor uint32
}

// devices are the nodes that runtime-spec v1.3.0 config-linux.md "Default Devices"
// asks for.
func devices() []device {
	return []device{
		{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
	}
}

// deviceLinks are the names and targets of the same chapter, and of "/dev symbolic
// links" in config-linux.md.
func deviceLinks() [][2]string {
	return [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
		{"stderr", "/proc/self/fd/2"}, {"core", "/proc/kcore"}, {"ptmx", "pts/ptmx"},
	}
}

// mountDevices mounts a /dev of the sandbox's own at a name below the skeleton, and
// returns the path. A node of its own has an inode of its own: a lock or a change of
// times does not reach the host. The kernel lets nobody open a node of a file system
// that was mounted in a user namespace (fs/super.c:alloc_super, SB_I_NODEV), so the
// mount is made here and not by libcontainer. Where the kernel refuses nodes, the path
// is empty.
func (b *builder) mountDevices(name string) (path string, err error) {
	mnt, err := b.newDevices()
	if err != nil {
		return "", err
	}
	defer descriptor.CloseFD(mnt)
	err = b.makeNodes(mnt)
	if err == nil {
		err = tryOpen(mnt, "null")
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENXIO) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if err := unix.Mkdirat(b.base, name, 0o700); err != nil {
		return "", fmt.Errorf("mkdir: %w", err)
	}
	err = withOpen(b.base, name, func(at int) error { return os.NewSyscallError("move_mount", move(mnt, at)) })
	return filepath.Join(b.dir, name), err
}

// tryOpen tries to open a node: a device cgroup may allow nodes to be made, and not to be
// used.
func tryOpen(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	return unix.Close(fd)
}

// newDevices is a detached mount of an empty file system in memory.
func (b *builder) newDevices() (int, error) {
	return newTmpfs("devices", b.uids, b.gids, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		[][2]string{{"mode", "0755"}, {"size", deviceBytes}, {"nr_inodes", deviceInodes}})
}

// makeNodes makes the nodes, which everybody may use, and the links.
func (b *builder) makeNodes(dir int) error {
	root := &node{}
	for _, d := range devices() {
		if err := unix.Mknodat(dir, d.name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("mknod %s: %w", d.name, err)
		}
		// The umask has its say in mknod(2).
		if err := unix.Fchmodat(dir, d.name, 0o666, 0); err != nil {
			return fmt.Errorf("chmod %s: %w", d.name, err)
		}
		if err := b.chown(dir, d.name, root, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	for _, l := range deviceLinks() {
		if err := b.link(dir, l[0], &node{text: l[1]}); err != nil {
			return fmt.Errorf("%s: %w", l[0], err)
		}
	}
	return nil
}
