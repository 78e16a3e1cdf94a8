package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
)

// Now is no earlier than the time of any file that was written before. Until AwaitTick
// returns, a later write may still get an earlier time.
func Now() time.Time { return time.Now().UTC() }

// AwaitTick waits until new writes get a later time than since. Since Linux 6.13 this takes some
// microseconds, and before some milliseconds.
func AwaitTick(ctx context.Context, since time.Time) (err error) {
	fd, err := unix.MemfdCreate("times", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create a file in memory: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	for {
		now, err := changeTime(fd)
		if err != nil || now.After(since) {
			return err
		}
		if err := statedir.Sleep(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
}

// changeTime changes a file in memory and returns the time that the kernel gave to the change. No later write to a
// filesystem of this host gets an earlier time.
//
// The kernel gives files the time of its last tick, up to 10 ms ago. But since Linux 6.13 a change of a file whose last
// time was read gets the time of the clock, and no file gets an earlier time from then on (the kernel's
// Documentation/filesystems/multigrain-ts.rst). So the first change here can get the time of the tick, and the
// second one gets that of the clock.
func changeTime(fd int) (time.Time, error) {
	var read unix.Stat_t
	for range 2 {
		if err := unix.Fchmod(fd, 0o600); err != nil {
			return time.Time{}, fmt.Errorf("change a file in memory: %w", err)
		}
		if err := unix.Fstat(fd, &read); err != nil {
			return time.Time{}, fmt.Errorf("stat a file in memory: %w", err)
		}
	}
	return time.Unix(read.Ctim.Unix()).UTC(), nil
}

// Settled is a time t: no earlier write has a time after t, and each later write has one.
func Settled(ctx context.Context) (time.Time, error) {
	now := Now()
	return now, AwaitTick(ctx, now)
}

// CoarseNow is the time that files get at this moment, which the kernel does not
// take from the clock each time.
func CoarseNow() time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil {
		return time.Now().UTC()
	}
	return time.Unix(now.Unix()).UTC()
}
