package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/draft"
)

// An UnsupportedError says that this host lacks a part that a store needs. It matches
// [errors.ErrUnsupported].
type UnsupportedError struct {
	Lacks string // the missing part
	Way   string // the way to get the part, or to do without it
}

func (e *UnsupportedError) Error() string { return e.Lacks + ": " + e.Way }

// Is matches errors.ErrUnsupported; see [errors.Is].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// CreateImage makes an image: a sparse file with an empty ext4 file system. The path must not
// exist yet. Writes to the file system make the file grow up to its limits. The file does not
// shrink. The image is a copy of a formatted template in the directory blanks, which
// CreateImage makes if it is missing. Only the caller's user may have the right to write there.
//
// The image is complete when CreateImage returns, but on disk only after [Sync].
//
// Errors: [errors.ErrUnsupported] if the host cannot make or mount images, or has no extended
// attributes for them; ENOSPC if the host has less free space now than a full image needs.
// Other programs can take that space later. Then a write in the image can succeed and be lost;
// [Check] finds this.
func CreateImage(path string, l Limits, blanks string) error {
	if err := l.checkImage(); err != nil {
		return err
	}
	if err := checkRoom(filepath.Dir(path), l.Bytes); err != nil {
		return err
	}
	blank, err := openBlank(l, blanks)
	if err != nil {
		return err
	}
	defer blank.Close()
	image, err := os.OpenFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(addMark(image), copySparse(image, blank), renew(image), image.Close()); err != nil {
		if unsupported := (*UnsupportedError)(nil); errors.As(err, &unsupported) {
			return errors.Join(unsupported, os.Remove(path))
		}
		err = fmt.Errorf("make %s from its template: %w; if the template is damaged, remove %s", path, err, blank.Name())
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// checkRoom checks that the file system of dir has space for a full image.
func checkRoom(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < bytes {
		return fmt.Errorf("a store of %d MiB in %s: %w: only %d MiB are free; ask for less, or make room", bytes>>20, dir, unix.ENOSPC, free>>20)
	}
	return nil
}

// copySparse copies the data of a file without its holes, mostly about a hundred KiB. The copy
// must not share blocks with the file: the overwrite of a shared block takes space, and an image
// must be able to record a failed write on a full disk.
func copySparse(to, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if err := to.Truncate(info.Size()); err != nil {
		return err
	}
	for end := int64(0); ; {
		start, err := unix.Seek(int(from.Fd()), end, unix.SEEK_DATA)
		if err == unix.ENXIO { // no data after end
			return nil
		}
		if err != nil {
			return os.NewSyscallError("lseek SEEK_DATA", err)
		}
		if end, err = unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE); err != nil {
			return os.NewSyscallError("lseek SEEK_HOLE", err)
		}
		if err := copyRange(to, from, start, end); err != nil {
			return err
		}
	}
}

// copiedAtOnce bounds the memory of a copy.
const copiedAtOnce = 1 << 20

func copyRange(to, from *os.File, start, end int64) error {
	block := make([]byte, min(end-start, copiedAtOnce))
	for at := start; at < end; at += int64(len(block)) {
		block = block[:min(end-at, int64(len(block)))]
		if _, err := from.ReadAt(block, at); err != nil {
			return fmt.Errorf("%s became shorter while it was copied: %w", from.Name(), err)
		}
		if _, err := to.WriteAt(block, at); err != nil {
			return err
		}
	}
	return nil
}

// mountTime bounds the wait for another process that mounts the same image. After a crash of the host the kernel first
// replays the journal, which takes long on a slow disk.
const mountTime = 10 * time.Minute

// MountImage mounts an image, detached, nosuid and nodev. If any process has mounted the image
// already, the new mount shows the same file system: an image never has two loop devices. The
// kernel frees the loop device after the last mount.
func MountImage(path string) (*os.File, error) {
	// The lock is held until the mount holds the device. Then the next process finds the device.
	image, err := descriptor.OpenLockedWithin(mountTime, path, unix.O_RDWR|unix.O_NOFOLLOW, descriptor.Exclusive)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	device, err := attach(image)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", path, err)
	}
	defer device.Close()
	return mountOn(device, path)
}

// mountOn mounts the file system of an image from its loop device.
func mountOn(device *os.File, path string) (*os.File, error) {
	// noinit_itable: the inode tables need no written zeros, since a new image has holes
	// there. data_err=abort: the first lost write of a file's content makes the file system
	// read-only, and its journal keeps the error (Linux 6.15, "ext4: abort journal on data
	// writeback failure if in data_err=abort mode"). So commands fail, and do not go on with
	// zeros.
	m, err := mount("ext4", device.Name(), [2]string{"noinit_itable", ""}, [2]string{"errors", "remount-ro"}, [2]string{"data_err", "abort"})
	if errors.Is(err, unix.ENODEV) {
		return nil, &UnsupportedError{"this kernel has no ext4", "load its module, or ask for a store in memory"}
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", path, err)
	}
	return m, nil
}

// shrinkStep is the space that one step of a removal frees, if the data is spread evenly over
// the image. Without steps a single system call removes a large file, and no signal can
// interrupt it.
const shrinkStep = 16 << 20

// RemoveImage removes an image, in steps. If ctx ends, it returns, and another call can go on.
// If the image has another name, RemoveImage removes only this name. If the image is still
// mounted, every use of the mount fails from then on. Otherwise a process with one open file
// would keep all the space of the image.
func RemoveImage(ctx context.Context, path string) error {
	// Another process holds the lock only for a moment, or while it removes the image.
	image, err := descriptor.OpenLocked(ctx, path, unix.O_RDWR|unix.O_NOFOLLOW, descriptor.Exclusive)
	if err != nil {
		return err
	}
	defer image.Close()
	// If another process has removed this name, the file may still have names of other owners.
	var st, named unix.Stat_t
	if err := errors.Join(unix.Fstat(int(image.Fd()), &st), unix.Lstat(path, &named)); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Dev != named.Dev || st.Ino != named.Ino {
		return fmt.Errorf("remove %s: %w", path, fs.ErrNotExist)
	}
	device, err := attached(image)
	if err != nil {
		return err
	}
	if device != nil {
		defer device.Close()
		if st.Nlink == 1 && shutDown(device, path) != nil {
			return os.Remove(path) // without shrink, since a mount may still use the image
		}
	}
	if st.Nlink == 1 {
		err := shrink(ctx, image, st.Size, st.Blocks*512)
		// A full btrfs may have space to remove a file, but not to shorten it.
		if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	return os.Remove(path)
}

// shutDown makes all uses of an image's mounts fail, in all processes.
func shutDown(device *os.File, path string) error {
	m, err := mountOn(device, path)
	if err != nil {
		return err
	}
	return errors.Join(Abandon(path, m), m.Close())
}

// shrink shortens a file to nothing, in steps. taken is the space of its blocks.
func shrink(ctx context.Context, f *os.File, size, taken int64) error {
	step := max(size/(1+taken/shrinkStep), shrinkStep)
	for size > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		size = max(size-step, 0)
		if err := f.Truncate(size); err != nil {
			return err
		}
	}
	return nil
}

// Abandon drops the writes to a mounted image that are not on disk yet. Call it before the
// image is unmounted and removed, since a removal waits for such writes. Every later use of the
// file system fails. Abandon does nothing if the image has another name, since its data stays
// then. EXT4_IOC_SHUTDOWN, Linux 4.10.
func Abandon(path string, mounted *os.File) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Nlink > 1 {
		return nil
	}
	inside, err := os.Open(in(mounted))
	if err != nil {
		return err
	}
	defer inside.Close()
	const shutdown, withoutLog = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	if err := unix.IoctlSetPointerInt(int(inside.Fd()), shutdown, withoutLog); err != nil {
		return fmt.Errorf("shut down the file system in %s: %w", path, err)
	}
	return nil
}

// Sync writes a mounted image to disk: its data and its name. Both exist after a crash of the
// host.
func Sync(path string, mounted *os.File) error {
	inside, err := os.Open(in(mounted))
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := unix.Syncfs(int(inside.Fd())); err != nil {
		return fmt.Errorf("sync the file system in %s: %w", path, err)
	}
	return draft.Sync(path, filepath.Dir(path))
}

// in returns a path to the root of a mount, or to an open file.
func in(f *os.File) string {
	defer runtime.KeepAlive(f)
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd())
}
