package mountns

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Pivot puts a detached mount in place of the root of the sandbox, on a thread in the sandbox's mount namespace, or in
// a copy of the namespace. Each process in the namespace with the present root as its root or as its working directory
// gets the new one (fs/fs_struct.c:chroot_fs_refs). A crash half-way leaves one of the two mounts over the other:
// [Uncover].
func Pivot(tree *os.File) error {
	root, err := Open("/")
	if err != nil {
		return err
	}
	defer root.Close()
	if err := Attach(tree, "/"); err != nil {
		return err
	}
	if err := unix.Fchdir(int(tree.Fd())); err != nil {
		return fmt.Errorf("enter the new root of the sandbox: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root in the sandbox: %w", err)
	}
	if err := unix.Fchdir(int(root.Fd())); err != nil { // it lies over the new one now
		return fmt.Errorf("enter the old root of the sandbox: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root of the sandbox: %w", err)
	}
	return unix.Chdir("/")
}

// Uncover unmounts the mount that lies over the root of the sandbox's processes, on a thread that has entered the
// sandbox's mount namespace and so has this mount as its root. The thread can do nothing more.
func Uncover() error {
	if err := unix.Unmount("/", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the cover of the sandbox's root: %w", err)
	}
	return nil
}
