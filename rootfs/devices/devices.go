// Package devices mounts a /dev of a sandbox's own.
package devices

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/fsmount"
)

// Root users inside may put a few small files into /dev. Other file systems are
// mounted below it.
const (
	bytes  = "64k"
	inodes = "256"
)

// ErrShared says that the kernel refuses nodes of the sandbox's own.
var ErrShared = errors.New("the nodes in /dev are the host's: their locks and times reach the host; " +
	"start the launcher with CAP_MKNOD, and without a device cgroup that forbids nodes")

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

// links are the names and targets of the same chapter, and of "/dev symbolic
// links" in config-linux.md.
func links() [][2]string {
	return [][2]string{
		{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"},
		{"stderr", "/proc/self/fd/2"}, {"core", "/proc/kcore"}, {"ptmx", "pts/ptmx"},
	}
}

// Mount returns a detached mount of a /dev with nodes of its own, of a user and a group of
// the host. A node of its own has an inode of its own: a lock or a change of times does not
// reach the host. The kernel lets nobody open a node of a file system that was mounted in a
// user namespace (fs/super.c:alloc_super, SB_I_NODEV), so the mount is made here and not by
// libcontainer. The error is [ErrShared] if the kernel refuses the nodes.
func Mount(uid, gid int) (*os.File, error) {
	fs, err := fsmount.Open("tmpfs", "devices", [2]string{"mode", "0755"}, [2]string{"size", bytes}, [2]string{"nr_inodes", inodes},
		[2]string{"uid", strconv.Itoa(uid)}, [2]string{"gid", strconv.Itoa(gid)})
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	fd, err := fs.MountWith(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), "dev")
	err = fill(fd, uid, gid)
	if err == nil {
		err = tryOpen(fd, "null")
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENXIO) {
		err = ErrShared
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
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

// fill makes the nodes, which everybody may use, and the links.
func fill(dir, uid, gid int) error {
	for _, d := range devices() {
		if err := unix.Mknodat(dir, d.name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("mknod %s: %w", d.name, err)
		}
		// The umask has its say in mknod(2).
		if err := unix.Fchmodat(dir, d.name, 0o666, 0); err != nil {
			return fmt.Errorf("chmod %s: %w", d.name, err)
		}
		if err := chown(dir, d.name, uid, gid); err != nil {
			return err
		}
	}
	for _, l := range links() {
		if err := unix.Symlinkat(l[1], dir, l[0]); err != nil {
			return fmt.Errorf("%s: symlink: %w", l[0], err)
		}
		if err := chown(dir, l[0], uid, gid); err != nil {
			return err
		}
	}
	return nil
}

func chown(dir int, name string, uid, gid int) error {
	if err := unix.Fchownat(dir, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%s: chown: %w", name, err)
	}
	return nil
}
