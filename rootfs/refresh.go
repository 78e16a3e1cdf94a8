package rootfs

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// upgraded returns files and directories of the host that an upgrade or an installation changes.
func upgraded() ([]string, error) {
	libraries, err := descriptor.Glob("/usr/lib", "*-linux-*")
	return append(libraries,
		"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/share", "/usr/local/bin", "/usr/local/lib",
		"/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs",
		"/var/lib/dpkg/status", "/var/lib/rpm", "/var/lib/pacman/local", "/lib/apk/db/installed"), err
}

// Upgraded is the last time at which the host's programs or libraries changed, as far as this
// shows in the directories that package managers write to. If that cannot be told, it is now.
func Upgraded() (last time.Time) {
	names, err := upgraded()
	if err != nil {
		return time.Now()
	}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(name, &st) == nil { // else the host has none
			if changed := time.Unix(st.Ctim.Unix()); changed.After(last) {
				last = changed
			}
		}
	}
	return last
}

// viewed are places where a root shows a mount of its view of the host, the most usual first.
var viewed = []string{"usr", "usr/bin", "usr/lib"}

// Refresh has the root of a sandbox show the host's present files, where the sandbox has looked
// at older ones that nobody has open. An overlay remembers files and missing names. root is the
// path of the sandbox's root, such as /proc/PID/root. Without a view there is nothing to do.
func Refresh(root string) error {
	top, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer descriptor.CloseFD(top)
	for _, name := range viewed {
		place, err := openBeneath(top, name)
		if err != nil {
			continue // a root of the user's own
		}
		done, err := forget(place, "/"+name)
		descriptor.CloseFD(place)
		if done || err != nil {
			return err
		}
	}
	return nil
}

// Forget has an overlay forget all names that nobody uses. top is the top directory of a mount.
func Forget(top *os.File) error {
	picked, err := unix.Fspick(int(top.Fd()), "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("fspick %s: %w", top.Name(), err)
	}
	defer descriptor.CloseFD(picked)
	if err := unix.FsconfigReconfigure(picked); err != nil {
		return fmt.Errorf("refresh %s: %w", top.Name(), err)
	}
	return nil
}

// forget has an overlay forget all names that nobody uses, if a place is a mount of one, and not
// of the overlay that the host itself has there. A change of a mounted file system's options
// begins with that (fs/super.c:reconfigure_super). No option is changed: the kernel refuses to
// make an overlay without an upper layer writable.
func forget(place int, onHost string) (done bool, err error) {
	var fs unix.Statfs_t
	var st, host unix.Stat_t
	if err := errors.Join(unix.Fstatfs(place, &fs), unix.Fstat(place, &st)); err != nil {
		return false, err
	}
	if fs.Type != unix.OVERLAYFS_SUPER_MAGIC || unix.Stat(onHost, &host) != nil || st.Dev == host.Dev {
		return false, nil
	}
	picked, err := unix.Fspick(place, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) { // no mount of its own
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("fspick %s: %w", onHost, err)
	}
	defer descriptor.CloseFD(picked)
	if err := unix.FsconfigReconfigure(picked); err != nil && !errors.Is(err, unix.EROFS) {
		return false, fmt.Errorf("refresh %s: %w", onHost, err)
	}
	return true, nil
}
