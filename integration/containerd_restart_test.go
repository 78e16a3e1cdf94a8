package integration

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// TestContainerdRestarts holds that containers outlive their containerd and
// are manageable by the next one. Each case has a containerd of its own.
func TestContainerdRestarts(t *testing.T) {
	testhost.Long(t)
	leavesNothing(t)
	need(t, peers())
	for _, test := range containerdRestartCases {
		t.Run(test.name, func(t *testing.T) {
			leavesNothing(t)
			test.test(t, startContainerd(t))
		})
	}
}

var containerdRestartCases = []struct {
	name string
	test func(*testing.T, *containerd)
}{
	{"daemon restarts under a running task", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "survivor", "exec sleep 1000")
		interrupt(t, c.process)
		c.launch(t)
		shown, status := c.task(t, "survivor")
		wantEqual(t, shown, pid)
		wantEqual(t, status, "RUNNING")
		wantEqual(t, c.execute(t, "survivor", untilItSleeps), "sleep\n")
		wantStatus(t, c.kill("survivor"), 0)
		wantEqual(t, c.status(t, "survivor"), 137)
	}},
	{"daemon is killed while a task runs", func(t *testing.T, c *containerd) {
		c.detached(t, "orphan", "exec sleep 1000")
		c.process.kill()
		c.launch(t)
		wantEqual(t, c.execute(t, "orphan", "echo answers"), "answers\n")
		wantStatus(t, c.kill("orphan"), 0)
		wantEqual(t, c.status(t, "orphan"), 137)
	}},
	{"task ends while the daemon is down", func(t *testing.T, c *containerd) {
		pid := c.detached(t, "ended", "exec sleep 1000")
		interrupt(t, c.process)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		c.launch(t)
		c.stopped(t, "ended")
		wantEqual(t, c.status(t, "ended"), 137)
	}},
}
