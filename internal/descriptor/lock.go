package descriptor

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lock waits for the exclusive flock(2) of a file. The lock ends with the open file. The
// caller must add the name of the file to an error.
func Lock(ctx context.Context, f *os.File) error { return lock(ctx, f, unix.LOCK_EX) }

// LockShared is Lock for the shared lock.
func LockShared(ctx context.Context, f *os.File) error { return lock(ctx, f, unix.LOCK_SH) }

// The pauses of a wait for a lock. Each is a quarter longer than the one before: most holders are done within a
// millisecond, and many that wait long must not keep the processors busy.
const (
	firstPause   = time.Millisecond
	longestPause = 20 * time.Millisecond
)

func lock(ctx context.Context, f *os.File, how int) error {
	for pause := firstPause; ; pause = min(pause+pause/4, longestPause) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
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
