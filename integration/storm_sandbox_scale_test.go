package integration

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A client is a program that makes sandboxes by a launcher of its own.
type client struct {
	*sandboxes
	*sandbox.Manager
	launcher *testProcess
}

func newClient(s *sandboxes) *client {
	return newClientBy(s, func(cmd *exec.Cmd) *exec.Cmd { return cmd })
}

// newClientBy has place put the launcher somewhere, such as into a network namespace.
func newClientBy(s *sandboxes, place func(*exec.Cmd) *exec.Cmd) *client {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "l") // short: a socket's path has 107 bytes
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	c := &client{sandboxes: s, launcher: start(s.t, place(s.command("launcher", "--socket", socket)))}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if _, err := awaitLauncher(ctx, socket); err != nil {
		s.t.Fatal(err)
	}
	if c.Manager, err = sandbox.NewManager(sandbox.ManagerConfig{Socket: socket}); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// end ends the client and then its launcher.
func (c *client) end() {
	c.t.Helper()
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
	if c.launcher.ended() {
		c.t.Errorf("the launcher has ended: %+v", c.launcher.wait())
		return
	}
	_ = c.launcher.cmd.Process.Signal(os.Interrupt)
	if got := c.launcher.wait(); got.code != 0 {
		c.t.Errorf("the launcher: %+v", got)
	}
}

// settles holds that the launcher comes to have no more than it had, but for what
// a garbage collector may keep.
func (c *client) settles(kib int64, descriptors int) {
	c.t.Helper()
	pid := c.launcher.cmd.Process.Pid
	for end := time.Now().Add(patience / 3); ; time.Sleep(100 * time.Millisecond) {
		if _, now := footprint(c.t, pid); now <= descriptors {
			break
		}
		if time.Now().After(end) {
			h := host{}
			addDescriptors(h, pid)
			c.t.Errorf("the launcher had %d descriptors, and has\n%s", descriptors, host{}.diff(h))
			break
		}
	}
	now, _ := footprint(c.t, pid)
	c.t.Logf("the launcher had %d KiB and has %d", kib, now)
	if now > kib+12<<10 {
		c.t.Errorf("the launcher had %d KiB, and has %d", kib, now)
	}
}

// create makes a sandbox and returns how long that took.
func (c *client) create() (*sandbox.Sandbox, time.Duration) {
	c.t.Helper()
	begin := time.Now()
	box, err := c.Create(c.t.Context(), sandbox.Config{Storage: sandbox.StorageMemory})
	if err != nil {
		c.t.Fatal(err)
	}
	return box, time.Since(begin)
}

// numbersOf reads the numbers of a file of "name: number" lines.
func numbersOf(t testing.TB, path string) map[string]int64 {
	t.Helper()
	values := map[string]int64{}
	lines := bufio.NewScanner(strings.NewReader(content(t, path)))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			values[strings.TrimSuffix(f[0], ":")] = n
		}
	}
	return values
}

// footprint is what a process has of its own, in KiB, and how many descriptors,
// but for those of processes that it has started and whose end it knows: a garbage
// collector closes them.
func footprint(t testing.TB, pid int) (kib int64, descriptors int) {
	t.Helper()
	h := host{}
	addDescriptors(h, pid)
	for line := range h {
		if !strings.HasSuffix(line, "anon_inode:[pidfd]") {
			descriptors++
		}
	}
	if pidfds := len(h) - descriptors; pidfds > 200 {
		t.Errorf("process %d has %d descriptors of processes", pid, pidfds)
	}
	return numbersOf(t, fmt.Sprintf("/proc/%d/smaps_rollup", pid))["Private_Dirty"], descriptors
}

// groups counts the cgroups of this kernel, those that are removed and not gone
// yet included.
func groups(t testing.TB) (n int64) {
	t.Helper()
	for line := range strings.Lines(content(t, "/proc/cgroups")) {
		var name string
		var hierarchy, count int64
		if _, err := fmt.Sscan(line, &name, &hierarchy, &count); err == nil {
			n = max(n, count)
		}
	}
	return n
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// smallMemory says that a thousand sandboxes have no room.
func smallMemory(t testing.TB) string {
	if numbersOf(t, "/proc/meminfo")["MemAvailable"] < 3<<20 {
		return "less than 3 GiB of memory are available"
	}
	return ""
}

// A thousand sandboxes at once: each takes little memory, all are usable, and
// nothing is left of them. How fast they come and go is what make bench shows.
func TestThousandSandboxesAtOnce(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	need(t, smallMemory(t))
	const n = 1000
	before, err := readHost()
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(s)
	for range 5 { // what is made once and kept
		box, _ := c.create()
		box.Close()
	}
	available := numbersOf(t, "/proc/meminfo")["MemAvailable"]
	took := make([]time.Duration, n)
	boxes := make([]*sandbox.Sandbox, n)
	begin := time.Now()
	for i := range n {
		boxes[i], took[i] = c.create()
	}
	first, last := median(took[:50]), median(took[n-50:])
	used := available - numbersOf(t, "/proc/meminfo")["MemAvailable"]
	for end := time.Now().Add(time.Minute); used > 2<<20 && time.Now().Before(end); time.Sleep(time.Second) { // others use the machine too
		used = min(used, available-numbersOf(t, "/proc/meminfo")["MemAvailable"])
	}
	kib, descriptors := footprint(t, c.launcher.cmd.Process.Pid)
	t.Logf("%d sandboxes in %v: the first 50 in %v each, the last in %v; %d MiB, of which the launcher has %d MiB, and %d descriptors",
		n, time.Since(begin), first, last, used>>10, kib>>10, descriptors)
	// What is promised is half of this bound: others use the machine too.
	if used > 2<<20 {
		t.Errorf("%d sandboxes take %d MiB", n, used>>10)
	}
	for _, i := range []int{0, n / 2, n - 1} {
		if r, err := boxes[i].Run(t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" {
			t.Errorf("sandbox %d of %d: %+v, %v", i, n, r, err)
		}
	}
	begin = time.Now()
	closeAll(t, boxes)
	t.Logf("gone in %v", time.Since(begin))
	c.end()
	if left := before.leftovers(); left != "" {
		t.Errorf("left behind:\n%.2000s", left)
	}
}

// closeAll closes a hundred at a time: on a busy machine a thousand take longer than one Close waits.
func closeAll(t *testing.T, boxes []*sandbox.Sandbox) {
	t.Helper()
	var closing errgroup.Group
	closing.SetLimit(100)
	for _, box := range boxes {
		closing.Go(box.Close)
	}
	if err := closing.Wait(); err != nil {
		t.Error(err)
	}
}

// Thousands of commands in one sandbox, all that each needs used once: launcher
// and agent are what they were before, and so are the cgroups.
func TestThousandsOfExecsInARow(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	c := newClient(s)
	box, _ := c.create()
	info, err := box.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run := func(n int) {
		t.Helper()
		for range n {
			if r, err := box.Exec(t.Context(), sandbox.Command{Args: []string{"true"}}); err != nil || r.ExitCode != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	run(500) // until it has the memory that it works with
	launcher, launcherFDs := footprint(t, c.launcher.cmd.Process.Pid)
	agent, agentFDs := footprint(t, info.Pid)
	before := groups(t)
	begin := time.Now()
	const n = 3000
	run(n)
	t.Logf("%d execs in %v", n, time.Since(begin))
	c.settles(launcher, launcherFDs)
	eventually(t, fmt.Sprintf("the agent has its %d descriptors", agentFDs), func() bool {
		_, now := footprint(t, info.Pid)
		return now <= agentFDs
	})
	more, _ := footprint(t, info.Pid)
	t.Logf("agent: %d and then %d KiB", agent, more)
	if more > agent+64 {
		t.Errorf("the agent had %d KiB, and has %d", agent, more)
	}
	eventually(t, "the cgroups of all execs are gone", func() bool { return groups(t) < before+n/2 })
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	c.end()
}

// Whoever starts detached commands and never asks for them fills nothing.
func TestDetachedExecsThatNobodyAsksFor(t *testing.T) {
	s := newSandboxes(t)
	c := newClient(s)
	box, _ := c.create()
	for range 400 {
		p, err := box.Start(t.Context(), sandbox.Command{Args: []string{"true"}, Detached: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.end() // whoever comes next knows that nobody starts them any more
	s.sh(box.ID(), "true")
	if n := len(s.execs(box.ID())); n > 256 || n < 200 {
		t.Errorf("%d detached execs are kept", n)
	}
	s.wants("down", box.ID())
}

func (s *sandboxes) wants(args ...string) {
	s.t.Helper()
	if got := run(s.t, s.command(args...)); got.code != 0 || got.stderr != "" {
		s.t.Errorf("%q: %+v", args, got)
	}
}

// Sandboxes that come and go: after five hundred more, launcher and host are as after
// a hundred.
func TestManySandboxesInARow(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	c := newClient(s)
	run := func(n int) {
		t.Helper()
		comeAndGo(t, n, func() (*sandbox.Sandbox, error) {
			return c.Up(t.Context(), "box", sandbox.Config{Storage: sandbox.StorageMemory})
		})
	}
	run(100)
	kib, descriptors := footprint(t, c.launcher.cmd.Process.Pid)
	before := groups(t)
	begin := time.Now()
	n := inARow(t, 500)
	run(n)
	t.Logf("%d sandboxes in %v; cgroups: %d and then %d", n, time.Since(begin), before, groups(t))
	c.settles(kib, descriptors)
	eventually(t, "the cgroups of all are gone", func() bool { return groups(t) < before+int64(n)/2 })
	c.end()
}

// comeAndGo makes and removes n sandboxes, one after the other. Some run a command.
func comeAndGo(t *testing.T, n int, makeOne func() (*sandbox.Sandbox, error)) {
	t.Helper()
	for i := range n {
		box, err := makeOne()
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if i%50 == 0 {
			if r, err := box.Run(t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" {
				t.Errorf("%+v, %v", r, err)
			}
		}
		if err := box.Close(); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
}

// inARow is how many sandboxes come and go. By hand the variable can ask for more.
func inARow(t *testing.T, usual int) int {
	t.Helper()
	text := os.Getenv("SANDBOX_RUNTIME_INTEGRATION_IN_A_ROW")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
