package descriptor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A Hold is a way to hold the lock of a file (flock(2)). The lock ends with the open file.
type Hold int

const (
	// Exclusive is for one holder alone.
	Exclusive Hold = unix.LOCK_EX
	// Shared is for any number of holders.
	Shared Hold = unix.LOCK_SH
)

// The pauses of a wait for a lock. Each is a quarter longer than the one before: most holders are done within a
// millisecond, and many that wait long must not keep the processors busy.
const (
	firstPause   = time.Millisecond
	longestPause = 20 * time.Millisecond
)

// Lock waits for the lock of a file. The caller must add the name of the file to an error.
func Lock(ctx context.Context, f *os.File, how Hold) error {
	for pause := firstPause; ; pause = min(pause+pause/4, longestPause) {
		err := unix.Flock(int(f.Fd()), int(how)|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// TryLock takes the exclusive lock of a file, and does not wait. It returns false if another open file has the lock.
func TryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), int(Exclusive)|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("flock", err)
}

// Unlock ends the lock of a file that stays open, or that a program which this process starts has open for a moment.
// It fails only if the file is closed, which ends the lock, too.
func Unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// OpenLocked opens a file or a directory, and waits for its lock. A file that O_CREAT makes is its user's alone.
func OpenLocked(ctx context.Context, path string, flags int, how Hold) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := Lock(ctx, f, how); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Moment bounds the wait for a lock that each holder needs for a few system calls.
const Moment = 30 * time.Second

// OpenLockedWithin is [OpenLocked] with a bound for the wait. A holder that keeps the lock for longer hangs, and the wait
// ends with an error.
func OpenLockedWithin(limit time.Duration, path string, flags int, how Hold) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	f, err := OpenLocked(ctx, path, flags, how)
	if errors.Is(err, context.DeadlineExceeded) { // no deadline of the caller
		err = fmt.Errorf("lock %s: other processes have held the lock for %v; end the holder if it hangs", path, limit)
	}
	return f, err
}

// HasName says whether an open file still has its name: another process may have removed or replaced the file before
// this process had the lock.
func HasName(f *os.File) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(mine, named), err
}
