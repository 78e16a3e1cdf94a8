package launcher

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A stopped helper would hold the launcher, and its call, for ever.
func TestAMakingThatHangsIsGivenUp(t *testing.T) {
	testhost.Concurrent(t)
	l := newTestLauncher(t)
	for name, request := range map[string]protocol.Create{"named": {Name: "box"}, "unnamed": {}} {
		ctx, cancel := context.WithCancel(t.Context())
		made := make(chan error, 1)
		go func() {
			_, err := l.Create(ctx, request, Sources{})
			made <- err
		}()
		testhost.Eventually(t, "the first process of the sandbox", func() bool { return stopChild(t) })
		cancel()
		select {
		case err := <-made:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the launcher still makes the sandbox", name)
		}
		checkNothingLeft(t, l)
		if left := helpers(t); len(left) > 0 {
			t.Errorf("%s: the helpers %v are not reaped", name, left)
		}
	}
}

// stopChild stops a child of the test that makes a sandbox. It returns false if there is none yet.
func stopChild(t *testing.T) bool {
	t.Helper()
	for _, pid := range helpers(t) {
		err := unix.Kill(pid, unix.SIGSTOP)
		if err == nil {
			return true
		}
		if !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	return false
}

// helpers are the children of the test that make a sandbox, and those that have ended and are not reaped.
func helpers(t *testing.T) (pids []int) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		children, _ := os.ReadFile("/proc/self/task/" + thread.Name() + "/children") // the thread can have ended
		for _, child := range strings.Fields(string(children)) {
			name, _ := os.ReadFile("/proc/" + child + "/comm") // as above
			pid, err := strconv.Atoi(child)
			if err == nil && strings.HasPrefix(string(name), "runc:[") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
