package mountns

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
)

// AttachBelow puts a detached mount at a place of another, which lacks it if the
// sandbox was given the mount point.
func AttachBelow(tree, top *os.File, rel string) error {
	open := func() (int, error) {
		return descriptor.Open(int(top.Fd()), rel, descriptor.Beneath, unix.O_PATH|unix.O_NOFOLLOW)
	}
	at, err := open()
	if errors.Is(err, unix.ENOENT) {
		if err := makePoint(int(top.Fd()), rel, tree); err != nil {
			return err
		}
		at, err = open()
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer unix.Close(at)
	if err := unix.MoveMount(int(tree.Fd()), "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// makePoint makes a mount point, and the directories above it.
func makePoint(top int, rel string, tree *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		return err
	}
	made := ""
	for _, name := range strings.Split(path.Dir(rel), "/") {
		if made = path.Join(made, name); made == "." {
			continue
		}
		if err := unix.Mkdirat(top, made, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("mkdir %s: %w", made, err)
		}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.Mkdirat(top, rel, 0o755)
	}
	return unix.Mknodat(top, rel, unix.S_IFREG|0o644, 0)
}

// Clone is a detached mount of an attached one, with the mounts below if it is recursive.
func Clone(f *os.File, recursive bool) (*os.File, error) {
	flags := uint(unix.AT_EMPTY_PATH | unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(int(f.Fd()), "", flags)
	if errors.Is(err, unix.EINVAL) && !recursive {
		return nil, fmt.Errorf("%s has other file systems mounted below it, and writes there cannot be kept apart: %w", f.Name(), fault.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("open_tree %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(tree), f.Name()), nil
}

// Of are the mounts of a sandbox, as its PID 1 has them.
func Of(init process.ID) ([]*mountinfo.Info, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(init.Pid) + "/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("mounts of the sandbox: %w", errors.Join(fault.ErrNotRunning, err))
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// CloneFile is another descriptor of the same.
func CloneFile(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// IsFrozen says whether the last mount on a directory of the sandbox is read-only.
func IsFrozen(path string) bool {
	f, err := Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && st.Flags&unix.ST_RDONLY != 0
}
