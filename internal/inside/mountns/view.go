package mountns

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// Enter returns a thread in the mount namespace of a sandbox that is up. Its root and
// working directory are the sandbox's, and all processes in the sandbox see its mounts and
// unmounts. Untrusted code chooses all names there, /proc included: so the thread is for
// system calls on held descriptors, and opens other files beneath the root without
// following a link. The caller must stop it.
func Enter(init process.ID) (*Thread, error) { return enter(init, mounts) }

// EnterNamed is Enter, and sethostname(2) on the thread sets the host name of the sandbox.
func EnterNamed(init process.ID) (*Thread, error) { return enter(init, mounts, names) }

// A kind of namespaces has a name below /proc/PID/ns, and a type of setns(2).
type kind struct {
	name string
	flag int
}

var mounts, names = kind{"mnt", unix.CLONE_NEWNS}, kind{"uts", unix.CLONE_NEWUTS}

func enter(init process.ID, kinds ...kind) (*Thread, error) {
	var spaces []*os.File
	defer func() { descriptor.Close(spaces...) }()
	for _, kind := range kinds {
		f, err := namespaceOf(init, kind.name)
		if err != nil {
			return nil, err
		}
		spaces = append(spaces, f)
	}
	return startThread(func() error {
		// Threads share these two, and setns(2) would change those of all.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare root and working directory: %w", err)
		}
		for i, f := range spaces {
			if err := unix.Setns(int(f.Fd()), kinds[i].flag); err != nil {
				return fmt.Errorf("enter the sandbox's %s namespace: %w", kinds[i].name, err)
			}
		}
		return nil
	})
}

// namespaceOf opens a namespace of a process and makes sure that it is that one's: its number may
// have become another's.
func namespaceOf(init process.ID, kind string) (*os.File, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(init.Pid) + "/ns/" + kind)
	if err != nil {
		return nil, fmt.Errorf("%s namespace of the sandbox: %w", kind, errors.Join(fault.ErrNotRunning, err))
	}
	if now, err := process.Of(init.Pid); err != nil || !now.Is(init) {
		f.Close()
		return nil, fmt.Errorf("%s namespace of the sandbox: %w", kind, errors.Join(fault.ErrNotRunning, err))
	}
	return f, nil
}

// Open opens a directory of the sandbox from a thread in its mount namespace: the last
// mount on it, if there is one. No link is followed.
func Open(path string) (*os.File, error) {
	return OpenInside(path, unix.O_PATH|unix.O_DIRECTORY)
}

// OpenInside is Open with flags of open(2).
func OpenInside(path string, flags int) (*os.File, error) {
	f, err := descriptor.OpenFile(unix.AT_FDCWD, path, descriptor.NoLinks, flags|unix.O_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("in the sandbox: %w", err)
	}
	return f, nil
}

// Attach puts a detached mount over a directory of the sandbox's, or one of a file over a file.
func Attach(tree *os.File, path string) error {
	return attach(tree, path, "to", 0)
}

// moveMountBeneath is MOVE_MOUNT_BENEATH (linux/mount.h), Linux 6.5.
const moveMountBeneath = 0x200

// AttachBeneath puts a detached mount below the last mount on a directory of the sandbox.
func AttachBeneath(tree *os.File, path string) error {
	return attach(tree, path, "beneath", moveMountBeneath)
}

func attach(tree *os.File, path, where string, flags int) error {
	at, err := OpenInside(path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer at.Close()
	flags |= unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	if err := unix.MoveMount(int(tree.Fd()), "", int(at.Fd()), "", flags); err != nil {
		return fmt.Errorf("move_mount %s %s %s in the sandbox: %w", tree.Name(), where, path, err)
	}
	return nil
}

// Detach unmounts the last mount on a directory of the sandbox, if nothing there is in
// use.
func Detach(path string) error {
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s in the sandbox: %w", path, err)
	}
	return nil
}

// Stat describes a file or directory of the sandbox's, as [OpenInside] opens it.
func Stat(path string) (st unix.Stat_t, err error) {
	f, err := OpenInside(path, unix.O_PATH)
	if err != nil {
		return st, err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, fmt.Errorf("stat %s in the sandbox: %w", path, err)
	}
	return st, nil
}

// SameDevice tells whether two directories of the sandbox's are on one file system.
func SameDevice(one, other string) (bool, error) {
	first, err := Stat(one)
	if err != nil {
		return false, err
	}
	second, err := Stat(other)
	return first.Dev == second.Dev, err
}
