package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"golang.org/x/sys/unix"
)

// An UnsupportedError names the part that this host lacks for images, and the way to get
// it. It is an errors.ErrUnsupported.
type UnsupportedError struct{ Lacks, Way string }

func (e *UnsupportedError) Error() string { return e.Lacks + ": " + e.Way }

// Is matches errors.ErrUnsupported; see [errors.Is].
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }

// CreateImage makes an image: a sparse file with an empty ext4 file system. There
// must be nothing yet at its path. It grows to its limits as it is written to, no
// further, and does not shrink. Formatted templates are kept in the directory
// blanks, which nobody but the caller's user may write to, and copied from.
//
// The file is complete when it is there, but on disk only after [Sync].
//
// Errors: [errors.ErrUnsupported] where the host cannot make or mount images, or has
// no extended attributes for them; ENOSPC where the host has less room now than the
// image may come to need. Others may take that room later. Then a write inside that
// succeeded can be lost: [Check] finds that out.
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
		err = fmt.Errorf("make %s from its template (if that is damaged, remove %s): %w", path, blank.Name(), err)
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func checkRoom(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < bytes {
		return fmt.Errorf("a store of %d MiB in %s, where %d MiB are free: ask for less, or make room: %w", bytes>>20, dir, free>>20, unix.ENOSPC)
	}
	return nil
}

// copySparse copies the data of a file without its holes, mostly a hundred KiB. It shares
// no blocks with the file: to overwrite a shared block takes room, and an image must be
// able to record on a full disk that a write failed.
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
		if err == unix.ENXIO { // no more of it
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

// MountImage mounts an image, detached, nosuid and nodev. An image that is mounted
// already, by any process, shares its file system: no two ever work on one image. Its loop
// device goes with the last mount.
func MountImage(path string) (*os.File, error) {
	image, err := os.OpenFile(path, unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	// Held until the mount holds the device: the next process finds the device.
	if err := unix.Flock(int(image.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	device, err := attach(image)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", path, err)
	}
	defer device.Close()
	return mountOn(device, path)
}

// mountOn mounts an image by its device.
func mountOn(device *os.File, path string) (*os.File, error) {
	// Tables of inodes need no zeros written where the file has holes. The first lost
	// write of a file's content makes the file system read-only and is kept in its
	// journal (Linux 6.15, "ext4: abort journal on data writeback failure if in
	// data_err=abort mode"): commands fail then, in place of going on with zeros.
	m, err := mount("ext4", device.Name(), [2]string{"noinit_itable", ""}, [2]string{"errors", "remount-ro"}, [2]string{"data_err", "abort"})
	if errors.Is(err, unix.ENODEV) {
		return nil, &UnsupportedError{"this kernel has no ext4", "load its module, or ask for a store in memory"}
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", path, err)
	}
	return m, nil
}

// shrinkStep is how much room is given back at a time, if it is spread evenly over
// an image: a large file is removed by one system call else, which no signal ends.
const shrinkStep = 16 << 20

// RemoveImage removes an image, in steps: once ctx is done it returns, and another call
// goes on. If the image has another name, only this name is removed. If the image is still
// mounted, every use of that mount fails from then on: otherwise the holder of a part of
// it would keep all its room.
func RemoveImage(ctx context.Context, path string) error {
	image, err := os.OpenFile(path, unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	// Others hold the lock for moments, or remove the image with it.
	if err := descriptor.Lock(ctx, image); err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	// If this name is gone since, the file's other names are not ours.
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
			return os.Remove(path) // as much as can be done
		}
	}
	if st.Nlink == 1 {
		err := shrink(ctx, image, st.Size, st.Blocks*512)
		// On a full disk btrfs may have room to remove a file and none to shorten it.
		if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	return os.Remove(path)
}

// shutDown ends the use of an image by all processes that have it mounted.
func shutDown(device *os.File, path string) error {
	m, err := mountOn(device, path)
	if err != nil {
		return err
	}
	return errors.Join(Abandon(path, m), m.Close())
}

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

// Abandon gives up the writes to a mounted image that are not on disk yet, before the
// image is unmounted and removed: else the removal would wait for them. From then on every
// use of the file system fails. It does nothing to an image that has another name, and so
// is not about to vanish. EXT4_IOC_SHUTDOWN, Linux 4.10.
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

// Sync brings a mounted image to disk, with all that was written to it and with
// its name: it is there after a crash of the host.
func Sync(path string, mounted *os.File) error {
	inside, err := os.Open(in(mounted))
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := unix.Syncfs(int(inside.Fd())); err != nil {
		return fmt.Errorf("sync the file system in %s: %w", path, err)
	}
	for _, name := range []string{path, filepath.Dir(path)} {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// in is a path to a mount's root.
func in(f *os.File) string {
	defer runtime.KeepAlive(f)
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd())
}
