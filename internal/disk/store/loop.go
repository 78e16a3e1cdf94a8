package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// attach returns the loop device of an image, or a new one if it has none. The caller must hold
// the image's lock. The kernel frees the device when no process has it open or mounted.
func attach(image *os.File) (*os.File, error) {
	device, err := attached(image)
	if device != nil || err != nil {
		return device, err
	}
	// A descriptor of its own: the device keeps the descriptor, and the lock would last.
	backing, err := os.OpenFile(in(image), unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	// With direct I/O, where the host's file system can, no block is cached twice.
	return attachFree(backing, blockSize, unix.LO_FLAGS_DIRECT_IO)
}

// attachFree gives the file to a free device. loop(4), Linux 5.8.
func attachFree(backing *os.File, block, flags uint32) (*os.File, error) {
	control, err := openLoop("/dev/loop-control", unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		device, err := tryAttach(control, backing, block, flags)
		if !errors.Is(err, unix.EBUSY) { // else another process was faster
			return device, err
		}
	}
}

// tryAttach gives the file to a device that is free at this moment.
func tryAttach(control, backing *os.File, block, flags uint32) (*os.File, error) {
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, loopError(fmt.Errorf("get a free one from %s: %w", control.Name(), err))
	}
	device, err := openLoop(fmt.Sprintf("/dev/loop%d", number), unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{
		Fd: uint32(backing.Fd()), Size: block,
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | flags},
	}
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return nil, errors.Join(loopError(fmt.Errorf("configure %s: %w", device.Name(), err)), device.Close())
	}
	return device, nil
}

// InUse tells whether an image has a loop device, by a descriptor of any kind of its
// file: then it is mounted, or was a moment ago.
func InUse(image *os.File) (bool, error) {
	device, err := attached(image)
	if device == nil {
		return false, err
	}
	return true, device.Close()
}

// openLoop opens a device that a host may lack, and a container mostly does.
func openLoop(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0)
	return f, loopError(err)
}

// loopError returns an UnsupportedError if the host has no loop devices, if none is free, or if
// the user has no right to use them. Other errors it returns unchanged. A container may have an
// ordinary file in place of the device; its error is ENOTTY.
func loopError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &UnsupportedError{"no loop devices (" + err.Error() + ")", "run it as root, and in a container allow them"}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOTTY):
		return &UnsupportedError{"no loop devices (" + err.Error() + ")", "load the loop module, and in a container allow them"}
	case errors.Is(err, unix.ENOSPC):
		return &UnsupportedError{"no loop device is free (" + err.Error() + ")", "remove sandboxes, or detach some of losetup -l"}
	}
	return err
}

// attached returns the loop device of an image, or nil. It compares device and inode of the
// file, since the image's path may name another file by now.
func attached(image *os.File) (*os.File, error) {
	var of unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &of); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	// Loop devices without a file do not have this directory.
	dirs, err := descriptor.Glob("/sys/block", "loop*/loop")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		device, err := openLoop("/dev/"+filepath.Base(filepath.Dir(dir)), unix.O_RDONLY)
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Device == of.Dev && info.Inode == of.Ino {
			return device, nil
		}
		device.Close()
		if err != nil && err != unix.ENXIO { // it has just lost its file
			return nil, fmt.Errorf("status of %s: %w", device.Name(), err)
		}
	}
	return nil, nil
}

// sectorSize is the smallest block of a device: EROFS on a tar has such blocks.
const sectorSize = 512

// AttachReadOnly returns a new loop device for a file without writers. The kernel frees the device when no
// process has it open or mounted.
func AttachReadOnly(file *os.File) (*os.File, error) {
	return attachFree(file, sectorSize, unix.LO_FLAGS_READ_ONLY)
}
