package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
)

// A blow is a command on the sandbox c that is killed at its failpoints.
type blow struct {
	name string
	// up says that c is, before each and after its recovery.
	up bool
	// before brings about what the command meets.
	before func(*sandboxStorm)
	// args are the command.
	args func(*sandboxStorm) []string
	// after are the states one of which c is in then, "" being none.
	after []string
	// recover are ways back, taken in turn.
	recover []func(*sandboxStorm, string)
	// of so many failpoints it is killed at one, another one each time.
	of int
}

func blows() []blow {
	is := func(args ...string) func(*sandboxStorm) []string {
		return func(*sandboxStorm) []string { return args }
	}
	up := func(s *sandboxStorm) { s.works("before", "up", "c") }
	busy := func(s *sandboxStorm) { up(s); s.detached("c", "(setsid sleep 1000 &); sleep 1000") }
	paused := func(s *sandboxStorm) { up(s); s.works("before", "pause", "c") }
	dead := func(s *sandboxStorm) { up(s); s.stop("c") }
	detached := func(script string) func(s *sandboxStorm) []string {
		return func(s *sandboxStorm) []string { return []string{"attach", "c", s.detached("c", script)} }
	}
	anyway := []func(*sandboxStorm, string){(*sandboxStorm).pruned, (*sandboxStorm).takeDown, (*sandboxStorm).upAgain}
	goesOn := []func(*sandboxStorm, string){(*sandboxStorm).goesOn}
	cleared := []func(*sandboxStorm, string){(*sandboxStorm).cleared}
	return []blow{
		{name: "up", args: is("up", "c"), after: []string{"", "created", "running", "stopped"}, recover: anyway, of: 20},
		{name: "up, without a compiled filter", before: (*sandboxStorm).forgetFilters, args: is("up", "c"), recover: anyway, of: 48},
		{name: "up of a dead one", before: dead, args: is("up", "c"), recover: anyway, of: 48},
		{name: "down", before: busy, args: is("down", "c"), recover: anyway, of: 8},
		{name: "down of a paused one", before: paused, args: is("down", "c"), recover: []func(*sandboxStorm, string){(*sandboxStorm).takeDown}, of: 16},
		{name: "delete --force", before: busy, args: is("delete", "--force", "c"), recover: anyway, of: 16},
		{name: "exec", up: true, args: is("exec", "c", "sh", "-c", "(setsid sleep 1000 &); true"), after: []string{"running"}, recover: goesOn, of: 1},
		// The shell's own words, if its time is over as it forks, are none of the runtime's.
		{name: "exec --timeout", up: true, args: is("exec", "--timeout", "20ms", "c", "sh", "-c", "exec 2>/dev/null; (setsid sleep 1000 &); sleep 1000"),
			after: []string{"running"}, recover: goesOn, of: 1},
		{name: "exec --detach", up: true, args: is("exec", "--detach", "c", "sleep", "1000"), after: []string{"running"}, recover: cleared, of: 1},
		{name: "attach", up: true, args: detached("echo out; sleep 0.02"), after: []string{"running"}, recover: cleared, of: 1},
		{name: "attach of an ended one", up: true, args: detached("exit 3"), after: []string{"running"}, recover: cleared, of: 1},
	}
}

// forgetFilters has the next sandbox wait for its filter.
func (s *sandboxStorm) forgetFilters() {
	files, err := filepath.Glob(filterDir + "/*")
	if err != nil {
		s.storm.t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			s.storm.t.Fatal(err)
		}
	}
}

// Whatever moment it is killed at, what one more command finds is whole again:
// up, down and prune a sandbox that was made or removed, exec and attach one in
// which something was run.
func TestKilledAtFailpointsOfSandboxes(t *testing.T) {
	s := newSandboxStorm(t)
	total := 0
	for _, b := range blows() {
		t.Run(b.name, func(t *testing.T) { total += s.of(t).strike(b) })
	}
	t.Logf("%d kills", total)
}

// strike returns the number of kills.
func (s *sandboxStorm) strike(b blow) (kills int) {
	t := s.storm.t
	if b.up {
		s.up("c")
		s.detached("c", "true") // what the first one makes stays
		s.cleared("before")
	}
	before := s.host()
	undisturbed := s.strikeAt(b, before, 0)
	tries, more := 0, 3
	points := len(undisturbed.Points)
	for _, n := range someFailpoints(points, max(b.of, points/30)) {
		if t.Failed() {
			if more--; more < 0 {
				t.Fatalf("and so on, from %d of %d", n, len(undisturbed.Points))
			}
		}
		tries++
		if s.strikeAt(b, before, n).Killed {
			kills++
		}
	}
	if kills == 0 {
		t.Error("never killed")
	}
	t.Logf("%d failpoints, %d kills; %d times it had ended before", len(undisturbed.Points), kills, tries-kills)
	return kills
}

// strikeAt kills the command at its n-th failpoint, recovers, and compares.
func (s *sandboxStorm) strikeAt(b blow, before host, n int) failpoint.Trace {
	t := s.storm.t
	t.Helper()
	if b.before != nil {
		b.before(s)
	}
	cmd := s.command(b.args(s)...)
	stderr, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	trace, err := failpoint.Run(cmd, n, patience)
	if err != nil {
		t.Fatal(err)
	}
	at := "undisturbed"
	if trace.Killed {
		at = fmt.Sprintf("killed at %d, %v", n, trace.Points[n-1])
	} else if said := content(t, stderr.Name()); strings.Count(said, "\n") > 1 {
		t.Errorf("%s: status %#x, %s", at, trace.Status, said)
	}
	s.isOneOf(at, b.after)
	b.recover[n%len(b.recover)](s, at)
	s.isBack(at, before)
	if t.Failed() && !b.up { // for the next one to begin with what it should
		run(t, s.command("down", "c"))
	}
	return trace
}
