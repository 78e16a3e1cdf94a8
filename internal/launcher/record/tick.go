package record

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
)

// Now is no earlier than the time of any file that was written before. Until AwaitTick
// returns, a later write may still get an earlier time.
func Now() time.Time { return time.Now().UTC() }

// AwaitTick waits until new writes get a later time than since. This takes some microseconds since Linux 6.13. With
// older kernels it takes up to 10 ms.
//
// The promise holds for filesystems that take the time from this kernel, in nanoseconds, as long as nobody sets the
// clock. FUSE and NFS can take the time from others. Some filesystems, such as FAT, have whole seconds.
func AwaitTick(ctx context.Context, since time.Time) error {
	for !changeTime().After(since) {
		if err := statedir.Sleep(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

// Settled is a time t: no earlier write has a time after t, and each later write has one.
func Settled(ctx context.Context) (time.Time, error) {
	now := Now()
	return now, AwaitTick(ctx, now)
}

// changeTime is a time that the kernel has given to a change of a file. No later change of another file gets an
// earlier time.
//
// The kernel gives files the time of its last tick. But since Linux 6.13 a file whose time was read gets the time of
// the clock at its next change, and no file gets an earlier time from then on. The kernel's
// Documentation/filesystems/multigrain-ts.rst describes this. So the first change here can get the time of the
// tick, and the second change gets the time of the clock.
func changeTime() time.Time {
	fd, err := unix.MemfdCreate("times", unix.MFD_CLOEXEC)
	if err != nil {
		return lastTick() // no descriptor or memory is left
	}
	defer unix.Close(fd)
	var read unix.Stat_t
	for range 2 {
		if errors.Join(unix.Fchmod(fd, 0o600), unix.Fstat(fd, &read)) != nil {
			return lastTick()
		}
	}
	return time.Unix(read.Ctim.Unix()).UTC()
}

// lastTick is the time of the kernel's last tick. Later changes get no earlier time on any kernel.
func lastTick() time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now) != nil {
		return time.Now().UTC()
	}
	return time.Unix(now.Unix()).UTC()
}
