package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// sandboxOperations are in the proportion that keeps the sandbox coming and
// going, and what each may answer beside success.
func sandboxOperations(id string) []operation {
	const (
		fates   = `does not exist|is not running|container not running` // somebody else removed or killed it
		refused = fates + `|is paused|is for sandboxes, and .* is an OCI container|` +
			`killed from outside while the command ran|removed while the command ran`
	)
	// Killed while it was made, or removed between that and a look at it.
	up := operation{[]string{"up", id}, `the sandbox's agent is gone|process is already dead|does not exist: it was removed|unable to start container process: `}
	execute := operation{[]string{"exec", id, "true"}, refused}
	return []operation{
		up, up, up, up, execute, execute, execute, execute,
		{[]string{"exec", "--detach", id, "sleep", "1000"}, refused},
		{[]string{"exec", "--timeout", "5ms", id, "sleep", "1000"}, refused + `|was still running after 5ms`},
		{[]string{"down", id}, fates},
		{[]string{"prune"}, ``},
		{[]string{"ps", "--execs", id}, refused},
		{[]string{"list", "-q"}, ``},
		{[]string{"do", "--", "true"}, ``},
		{[]string{"pause", id}, fates + pauses},
		{[]string{"resume", id}, fates + `|container not paused`},
		{[]string{"resume", id}, fates + `|container not paused`},
		{[]string{"update", "--pids-limit", "77", id}, fates},
		{[]string{"kill", id, "KILL"}, fates},
		{[]string{"delete", "--force", id}, ``},
		{[]string{"state", id}, fates},
	}
}

// Many processes make, use, change, kill and remove sandboxes of the same few
// names, in two state roots that share one data directory: each call does what it
// was asked, or says in a line why not, and in the end nothing is left.
func TestManyProcessesOnFewSandboxes(t *testing.T) {
	testhost.Long(t)
	for _, ids := range [][]string{{"a"}, {"a", "b", "c"}} {
		t.Run(fmt.Sprint(len(ids)), func(t *testing.T) {
			one, two := newSandboxes(t), newSandboxes(t)
			for _, s := range []*sandboxes{one, two} { // for list
				if err := os.Mkdir(s.root, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			calls := &tally{t: t, seen: map[string]int{}}
			var workers sync.WaitGroup
			for worker := range 8 {
				s := []*sandboxes{one, two}[worker%2]
				workers.Go(func() { s.fight(calls, ids) })
			}
			workers.Wait()
			for _, s := range []*sandboxes{one, two} {
				for _, id := range ids {
					s.wants("delete", "--force", id)
				}
				s.wants("prune")
			}
			t.Logf("%d calls:\n%s", calls.total, calls)
		})
	}
}

func (s *sandboxes) fight(calls *tally, ids []string) {
	for range 40 {
		all := sandboxOperations(ids[rand.N(len(ids))])
		op := all[rand.N(len(all))]
		cmd := exec.Command(binary(s.t), append([]string{"--root", s.root}, op.args...)...)
		calls.addSandbox(op, run(s.t, cmd))
		if op.args[0] == "pause" { // else what runs in it may wait for ever
			_ = run(s.t, exec.Command(binary(s.t), "--root", s.root, "resume", op.args[len(op.args)-1]))
		}
	}
}

// addSandbox is add, for what commands on sandboxes answer.
func (y *tally) addSandbox(op operation, got result) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.total++
	said := strings.TrimSpace(got.stderr)
	if op.args[0] != "list" { // which says it of each
		y.seen[fmt.Sprintf("%s: %d %s", op.args[0], got.code, numbers.ReplaceAllString(said, "N"))]++
	}
	if got.code != 0 && (op.refusals == "" || !regexp.MustCompile(op.refusals).MatchString(said) || strings.Contains(said, "\n")) ||
		strings.Contains(said, "goroutine ") {
		y.t.Errorf("%q: %s", op.args, answered(got))
	}
}

// Several programs ask several launchers for the same sandbox and remove it:
// what each gets works, until it is told that somebody has removed it.
func TestManyClientsOnOneName(t *testing.T) {
	s := newSandboxes(t)
	clients := []*client{newClient(s), newClient(s), newClient(s)}
	var working sync.WaitGroup
	for i := range 9 {
		c := clients[i%len(clients)]
		working.Go(func() {
			for range 20 {
				c.upAndRun(t)
			}
		})
	}
	working.Wait()
	for _, c := range clients {
		if err := c.Remove(t.Context(), "box"); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			t.Error(err)
		}
		c.end()
	}
}

func (c *client) upAndRun(t *testing.T) {
	box, err := c.Up(t.Context(), "box", sandbox.Config{})
	if errors.Is(err, sandbox.ErrNotFound) { // removed between that and the launcher's look at it
		return
	}
	if err != nil {
		t.Errorf("up: %v", err)
		return
	}
	r, err := box.Run(t.Context(), "echo usable")
	switch {
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrNotRunning), err == nil && r.Status == sandbox.StatusLost:
	case err != nil || string(r.Stdout) != "usable\n":
		t.Errorf("%+v, %v", r, err)
	}
	if rand.N(3) == 0 {
		if err := box.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// A name that is made and removed again and again, while others prune: who has
// made it can use it.
func TestPruneSparesWhatIsBeingMade(t *testing.T) {
	testhost.Long(t)
	s := newSandboxes(t)
	c := newClient(s)
	var pruning sync.WaitGroup
	done := make(chan struct{})
	pruning.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				s.wants("prune")
			}
		}
	})
	for i := range 60 {
		box, err := c.Create(t.Context(), sandbox.Config{}, sandbox.Named("box"))
		if err != nil {
			t.Errorf("create %d: %v", i, err)
			continue
		}
		if r, err := box.Run(t.Context(), "echo usable"); err != nil || string(r.Stdout) != "usable\n" {
			t.Errorf("run %d: %+v, %v", i, r, err)
		}
		if err := box.Close(); err != nil {
			t.Errorf("close %d: %v", i, err)
		}
	}
	close(done)
	pruning.Wait()
	c.end()
}

// The OCI commands on a sandbox while commands run in it: those feel what is done,
// are told, and end with it.
func TestContainerCommandsWhileExecsRun(t *testing.T) {
	s := newSandboxes(t)
	for _, end := range [][]string{{"kill", "box", "KILL"}, {"delete", "--force", "box"}} {
		s.up("box")
		s.detached("box", "exec sleep 1000")
		var attached []*testProcess
		for range 4 {
			attached = append(attached, start(t, s.command("exec", "box", "sh", "-c", "echo ready; exec sleep 1000")))
		}
		for _, p := range attached {
			p.prints("ready\n")
		}
		var timed *testProcess
		inLongerTime(t, time.Second, func(timeout string) bool {
			timed = start(t, s.command("exec", "--timeout", timeout, "box", "sh", "-c", "echo ready; exec sleep 1000"))
			eventually(t, "it is ready, or its time is over", func() bool { return timed.stdout() != "" || timed.ended() })
			return !timed.ended()
		})
		s.wants("pause", "box")
		s.wants("update", "--memory", "300m", "--memory-swap", "300m", "--pids-limit", "99", "box")
		if got := timed.wait(); got.code != 124 || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("its time was over while it stood still: %+v", got)
		}
		s.wants("resume", "box")
		s.wants("exec", "box", "true")
		s.wants(end...)
		for _, p := range attached {
			if got := p.wait(); got.code != 137 || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%q: %+v", end, got)
			}
		}
		s.downIfUp("box")
		if left := s.state(); len(left) != 0 {
			t.Errorf("%q leaves %q", end, left)
		}
	}
}
