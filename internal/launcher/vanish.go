package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/cgroups"
	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launch"
)

// vanishTime is how long a PID 1 that was killed may take to end in the quick
// way of removing a sandbox.
const vanishTime = 100 * time.Millisecond

// vanish removes a sandbox that is as it should be, without looking at each
// hierarchy for processes: with its PID 1 goes its pid namespace, and then its
// groups are empty. Of any other it is an error, with nothing done that the
// thorough way would not do.
func (l *Launcher) vanish(ctx context.Context, id string, init identity, group *cgroups.Group) error {
	if l.paused(id) { // what the v1 freezer holds does not end
		return &launch.SandboxError{ID: id, Err: launch.ErrPaused}
	}
	if err := group.LiftThrottles(); err != nil {
		return err
	}
	if err := init.end(vanishTime); err != nil {
		return err
	}
	if err := group.Delete(ctx); err != nil {
		return err
	}
	return container.DiscardIn(l.root, id, l.cgroupOf(id))
}

// end kills the process and returns when it is gone.
func (i identity) end(patience time.Duration) error {
	if here, err := os.Readlink("/proc/self/ns/pid"); err != nil || here != i.Namespace || i.Pid <= 1 {
		return fmt.Errorf("process %d cannot be told from others here", i.Pid)
	}
	pidfd, err := unix.PidfdOpen(i.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	// Only now is the number bound to a process: is it still that one?
	if !i.lives() {
		return nil
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d was killed and does not end", i.Pid)
		}
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
}
