package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/failpoint"
)

// A victim is a command that is killed at each of its failpoints.
type victim struct {
	name string
	// container is what the container c runs, spec a change of its bundle's.
	container []string
	spec      func(*specs.Spec)
	// before brings c into the state that the command meets.
	before func(*storm)
	args   []string
	// env is added to the command's.
	env []string
	// after are the states one of which c is in then, as state prints it, ""
	// being none.
	after []string
	// recover removes all that is left.
	recover []string
}

var deleteForce = []string{"delete", "--force", "c"}

func victims(bundle string) []victim {
	sleep := []string{"sleep", "1000"}
	create := []string{"create", "--bundle", bundle, "--pid-file", filepath.Join(bundle, "pid"), "c"}
	created := func(s *storm) { s.oci.run(create...) }
	running := func(s *storm) { created(s); s.oci.run("start", "c") }
	paused := func(s *storm) { running(s); s.oci.run("pause", "c") }
	stopped := func(s *storm) { created(s); s.stop("c") }
	up := func(s *storm) { s.oci.run("up", "c") }
	all := []victim{
		{name: "create", container: sleep, args: create, after: []string{"", "created", "stopped"}},
		// Nothing of it dies with its init, and it has a socket.
		{name: "create, with the host's processes", container: sleep, spec: withHostProcesses, args: create,
			env: []string{"NOTIFY_SOCKET=" + filepath.Join(bundle, "manager")}, after: []string{"", "created", "stopped"}},
		{name: "run", container: []string{"true"}, args: []string{"run", "--bundle", bundle, "c"},
			after: []string{"", "created", "running", "stopped"}},
		{name: "start", container: sleep, before: created, args: []string{"start", "c"}, after: []string{"created", "running"}},
		{name: "exec", container: sleep, before: running, args: []string{"exec", "c", "true"}, after: []string{"running"}},
		{name: "kill", container: sleep, before: running, args: []string{"kill", "c", "KILL"}, after: []string{"running", "stopped"}},
		{name: "pause", container: sleep, before: running, args: []string{"pause", "c"}, after: []string{"running", "paused"}},
		{name: "resume", container: sleep, before: paused, args: []string{"resume", "c"}, after: []string{"running", "paused"}},
		{name: "update", container: sleep, before: running, args: []string{"update", "--pids-limit", "7", "c"}, after: []string{"running"}},
		{name: "delete", container: sleep, before: stopped, args: []string{"delete", "c"}, after: []string{"", "stopped"}},
		{name: "delete --force", container: sleep, before: running, args: deleteForce, after: []string{"", "running", "stopped"}},
		{name: "delete --force of a paused one", container: sleep, before: paused, args: deleteForce,
			after: []string{"", "paused", "running", "stopped"}},
		{name: "do", args: []string{"do", "--", "true"}, recover: []string{"prune"}},
		{name: "up", args: []string{"up", "c"}, after: []string{"", "created", "running", "stopped"}},
		{name: "up of what is up", before: up, args: []string{"up", "c"}, after: []string{"running"}},
		{name: "exec in a sandbox", before: up, args: []string{"exec", "c", "true"}, after: []string{"running"}},
		{name: "exec --detach in a sandbox", before: up, args: []string{"exec", "--detach", "c", "sleep", "1000"}, after: []string{"running"}},
		{name: "down", before: up, args: []string{"down", "c"}, after: []string{"", "running", "paused", "stopped"}}, // frozen for the kill, on v1
		{name: "prune", before: (*storm).crash, args: []string{"prune"}, recover: []string{"prune"}},
	}
	for i := range all {
		if all[i].recover == nil {
			all[i].recover = deleteForce
		}
	}
	return all
}

func withHostProcesses(s *specs.Spec) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace
	})
}

// Whatever moment the runtime is killed at: one more command, which knows only
// the id, or prune, which does not even know that, and the host is as before.
func TestKilledAtFailpointsOfContainers(t *testing.T) {
	s := newStorm(t)
	total := 0
	for _, v := range victims(s.bundle) {
		t.Run(v.name, func(t *testing.T) { total += s.killAtEachPoint(t, v) })
	}
	t.Logf("%d kills", total)
}

// killAtEachPoint returns the number of kills.
func (s *storm) killAtEachPoint(t *testing.T, v victim) int {
	s = s.of(t)
	if v.container != nil {
		var changes []func(*specs.Spec)
		if v.spec != nil {
			changes = append(changes, v.spec)
		}
		s.runs(v.container, changes...)
	}
	before := s.host()
	undisturbed := s.killAt(v, before, 0)
	kills, more := 0, 3
	points := len(undisturbed.Points)
	for _, n := range someFailpoints(points, max(8, points/25)) {
		if t.Failed() {
			if more--; more < 0 {
				t.Fatalf("and so on, from failpoint %d of %d", n, len(undisturbed.Points))
			}
		}
		trace := s.killAt(v, before, n)
		if trace.Killed {
			kills++
		}
	}
	if kills == 0 {
		t.Error("never killed")
	}
	t.Logf("%d failpoints, %d kills", len(undisturbed.Points), kills)
	return kills
}

// killAt kills the victim at its n-th failpoint, recovers, and compares.
func (s *storm) killAt(v victim, before host, n int) failpoint.Trace {
	s.t.Helper()
	if v.before != nil {
		v.before(s)
	}
	stderr, err := os.CreateTemp(s.t.TempDir(), "stderr")
	if err != nil {
		s.t.Fatal(err)
	}
	defer stderr.Close()
	cmd := s.oci.command(v.args...)
	cmd.Stderr = stderr
	cmd.Env = append(os.Environ(), v.env...)
	trace, err := failpoint.Run(cmd, n, patience)
	if err != nil {
		s.t.Fatal(err)
	}
	at := "undisturbed"
	if trace.Killed {
		at = fmt.Sprintf("killed at %d, %v", n, trace.Points[n-1])
	} else if trace.Status.ExitStatus() != 0 {
		s.t.Errorf("%s: status %#x, %s", at, trace.Status, content(s.t, stderr.Name()))
	}
	s.isOneOf(at, v.after)
	s.recover(at, v.recover, before)
	return trace
}

// isOneOf holds that state says one of the given of c.
func (s *storm) isOneOf(at string, states []string) {
	s.t.Helper()
	if states == nil {
		return
	}
	if got := s.status("c"); !slices.Contains(states, got) {
		s.t.Errorf("%s: c is %q, want one of %q", at, got, states)
	}
}
