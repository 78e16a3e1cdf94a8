package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootID is the kernel's name for this boot, the same in every namespace.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// SinceBoot is the time since the host's boot, with the time of its sleep. It is the same for processes of all time
// namespaces.
func SinceBoot() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("clock_gettime: %w", err)
	}
	offset, err := bootOffset()
	return time.Duration(ts.Nano()) - offset, err
}

// bootOffset is the difference that the time namespace of this process adds to the time since boot
// (time_namespaces(7), Linux 5.6). The kernel adds it to the start times in /proc/PID/stat, too. A process does not
// change its time namespace, so bootOffset remembers the answer.
func bootOffset() (time.Duration, error) {
	return ownBootOffset.get(func() (time.Duration, error) { return offsetOf("/proc/self") })
}

var ownBootOffset fact[time.Duration]

// offsetOf is bootOffset of the process with this directory of procfs. The file with the offsets is about the time
// namespace of the children. A process that calls unshare(2) enters the new namespace at its next execve(2), and before
// Linux 6.1 never.
func offsetOf(proc string) (time.Duration, error) {
	own, err := os.Readlink(proc + "/ns/time")
	if errors.Is(err, fs.ErrNotExist) { // a kernel without time namespaces
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	children, err := os.Readlink(proc + "/ns/time_for_children")
	if err != nil {
		return 0, err
	}
	if own != children {
		return 0, errors.New("this program has another time namespace than its children, so it cannot tell when processes were started; start it in a new process")
	}
	text, err := os.ReadFile(proc + "/timens_offsets")
	if err != nil {
		return 0, err
	}
	return parseOffset(string(text))
}

// parseOffset reads the line "boottime SECONDS NANOSECONDS".
func parseOffset(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "boottime" {
			continue
		}
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/self/timens_offsets: %w", err)
		}
		nanoseconds, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/self/timens_offsets: %w", err)
		}
		return time.Duration(seconds)*time.Second + time.Duration(nanoseconds), nil
	}
	return 0, nil
}

// tick is the unit of start times: USER_HZ of Linux is 100 on all architectures that this program runs on.
const tick = 10 * time.Millisecond

// IsSameStart compares two start times of one process number. A reader in a time namespace can be wrong by one tick,
// if the offset of the namespace is no whole number of ticks. The host cannot use a number again within a tick.
func IsSameStart(a, b uint64) bool { return a-b+1 <= 2 }
