package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A FailureError says that an image has lost some of the writes to it. Its files may
// hold zeros, or older content, where a write succeeded.
type FailureError struct {
	// Err is the first error that was found.
	Err error
	// Time is when the error was found; the zero time where that is not known.
	Time time.Time
}

func (e *FailureError) Error() string {
	at := ""
	if !e.Time.IsZero() {
		at = e.Time.UTC().Format(" at 2006-01-02 15:04:05 UTC")
	}
	return fmt.Sprintf("writing to disk failed%s: %v", at, e.Err)
}

// Unwrap returns the first error.
func (e *FailureError) Unwrap() error { return e.Err }

// ErrAbandoned is of an image that was given up with [Abandon] or [RemoveImage].
var ErrAbandoned = errors.New("the image is being removed")

// The mark is an extended attribute of the image's file: "ok" or the number of an
// error, and a time in nanoseconds, padded with spaces. It exists from the image's
// creation on, and always has the same size: the file system of the host can
// overwrite the mark where it has no room left. It is the inode's, so that all names
// of an image share it. Its name and size fit into an inode of ext4 and XFS.
const (
	markName = "trusted.sandbox-runtime"
	markSize = 32
	unfailed = "ok"
)

func encodeMark(state string, at time.Time) []byte {
	return fmt.Appendf(nil, "%-*s", markSize, state+" "+strconv.FormatInt(at.UnixNano(), 10))
}

func decodeMark(mark []byte) error {
	fields := strings.Fields(string(mark))
	if len(fields) == 2 && fields[0] == unfailed {
		return nil
	}
	failure := &FailureError{Err: unix.EIO}
	if len(fields) == 2 {
		if n, err := strconv.ParseUint(fields[0], 10, 12); err == nil {
			failure.Err = unix.Errno(n)
		}
		if ns, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			failure.Time = time.Unix(0, ns)
		}
	}
	return failure
}

// addMark gives a new image its mark. The time keeps two marks from being equal:
// ext4 shares equal attributes that do not fit into inodes, and would need room to
// change one of them.
func addMark(image *os.File) error {
	err := unix.Fsetxattr(int(image.Fd()), markName, encodeMark(unfailed, time.Now()), unix.XATTR_CREATE)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) {
		return &UnsupportedError{
			fmt.Sprintf("no extended attributes %q in %s (%v)", "trusted", image.Name(), err),
			"keep the data directory on ext4, XFS or btrfs, and run it as root of the host",
		}
	}
	return os.NewSyscallError("fsetxattr", err)
}

// The places of a superblock of ext4 that tell of errors (Documentation/filesystems/
// ext4/super.rst).
const (
	superblockAt     = 1024
	stateAt          = 0x3a
	stateErrors      = 2
	firstErrorTimeAt = 0x198
	superblockEnd    = 0x1a0
)

// Failure returns a [*FailureError] if a failure of the image was recorded: by
// [Check], or by ext4 in its superblock. It does not sync, and takes microseconds.
// ext4 moves errors from its journal to its superblock when the image is mounted.
func Failure(path string) error {
	image, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	mark := make([]byte, markSize)
	n, err := unix.Fgetxattr(int(image.Fd()), markName, mark)
	switch {
	case err == nil:
		if err := decodeMark(mark[:n]); err != nil {
			return err
		}
	// An older release has made the image.
	case !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("read the mark of %s: %w", path, err)
	}
	superblock := make([]byte, superblockEnd)
	if _, err := image.ReadAt(superblock, superblockAt); err != nil {
		return fmt.Errorf("read the superblock: %w", err)
	}
	if binary.LittleEndian.Uint16(superblock[stateAt:])&stateErrors == 0 {
		return nil
	}
	failure := &FailureError{Err: unix.EIO}
	if first := binary.LittleEndian.Uint32(superblock[firstErrorTimeAt:]); first != 0 {
		failure.Time = time.Unix(int64(first), 0)
	}
	return failure
}

// Check syncs a mounted image and returns a [*FailureError] if some write to it was
// ever lost. It records the first error durably. Without an error all that was
// written before the call is on disk.
//
// The kernel reports an error of writing back to each open file of the file system
// once, and certainly only to those that were open before the error (syncfs(2), Linux
// 5.8). held is such a file, open since the image was first mounted. Where held is
// nil, an error that somebody else has asked for before may be missed.
//
// Errors: [ErrAbandoned].
func Check(ctx context.Context, path string, mounted, held *os.File) error {
	top, err := os.Open(in(mounted))
	if err != nil {
		return abandonedOr(mounted, err)
	}
	defer top.Close()
	// One at a time: only one caller gets the error, and has to record it.
	if err := descriptor.Lock(ctx, top, descriptor.Exclusive); err != nil {
		return fmt.Errorf("lock the file system in %s: %w", path, err)
	}
	if err := Failure(path); err != nil {
		return err
	}
	// A new file first. It takes most of the time, and an error that it reports is
	// still to be reported by held: nothing is lost if this process is killed here.
	err = unix.Syncfs(int(top.Fd()))
	if err == nil && held != nil {
		err = unix.Syncfs(int(held.Fd()))
	}
	if err == nil {
		err = TakesWrites(mounted)
	}
	switch {
	case err == nil:
		return Failure(path)
	case errors.Is(err, unix.EBADF): // nothing was asked
		return fmt.Errorf("sync the file system in %s: %w", path, err)
	}
	if err := abandonedOr(mounted, nil); err != nil {
		return err
	}
	return record(path, err)
}

// record marks an image as failed.
func record(path string, cause error) error {
	var number unix.Errno
	if !errors.As(cause, &number) {
		number = unix.EIO
	}
	failure := &FailureError{Err: number, Time: time.Now()}
	image, err := os.OpenFile(path, unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("%w; record that: %w", failure, err)
	}
	defer image.Close()
	mark := encodeMark(strconv.Itoa(int(number)), failure.Time)
	if err := unix.Fsetxattr(int(image.Fd()), markName, mark, 0); err != nil {
		return fmt.Errorf("%w; record that in an attribute of %s: %w", failure, path, err)
	}
	if err := image.Sync(); err != nil {
		return fmt.Errorf("%w; sync %s, which records that: %w", failure, path, err)
	}
	return failure
}

// TakesWrites returns EROFS if the file system of a mounted image has become
// read-only, as after an error of its journal, and [ErrAbandoned]. Newer kernels show
// that only to a change (Linux 6.12, "ext4: don't set SB_RDONLY after filesystem
// errors"). Removing a missing attribute still starts an ext4 transaction.
func TakesWrites(mounted *os.File) error {
	err := unix.Removexattr(in(mounted), markName+".none")
	switch {
	case errors.Is(err, unix.EROFS):
		return os.NewSyscallError("removexattr", err)
	case errors.Is(err, unix.EIO): // EXT4_IOC_SHUTDOWN; an aborted journal is EROFS
		return ErrAbandoned
	}
	return nil
}

// abandonedOr returns ErrAbandoned if the image was given up, and else the error.
func abandonedOr(mounted *os.File, err error) error {
	if errors.Is(TakesWrites(mounted), ErrAbandoned) {
		return ErrAbandoned
	}
	return err
}
