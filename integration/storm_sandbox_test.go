package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A sandboxStorm is a storm in which sandboxes stay up: "box" is one beside,
// with a detached exec, and "c" is what is hit.
type sandboxStorm struct {
	*storm
	*sandboxes
}

func newSandboxStorm(t *testing.T) *sandboxStorm {
	t.Helper()
	s := &sandboxStorm{storm: newStorm(t)}
	s.sandboxes = &sandboxes{t: t, root: s.storm.oci.root}
	s.up("box")
	id := s.detached("box", "exec sleep 1000")
	eventually(t, "what runs beside is the program that stays", func() bool { return slices.Equal(s.sleeps("box"), []string{"1000"}) })
	pid := s.pid("box")
	s.storm.living = append(s.storm.living, pid)
	t.Cleanup(func() {
		if now := s.pid("box"); now != pid {
			t.Errorf("the PID 1 beside was %d and is %d", pid, now)
		}
		if got := s.sh("box", "echo usable"); got != "usable\n" {
			t.Errorf("the sandbox beside says %q", got)
		}
		if e := s.execs("box")[id]; e.Ended || len(e.Pids) != 1 {
			t.Errorf("what ran beside: %+v", e)
		}
	})
	return s
}

// of is the storm for a subtest.
func (s *sandboxStorm) of(t *testing.T) *sandboxStorm {
	return &sandboxStorm{storm: s.storm.of(t), sandboxes: &sandboxes{t: t, root: s.root}}
}

// filterDir keeps compiled filters.
const filterDir = dataDir + "/seccomp"

// readHost is the storm's, with the ranges of ids that are taken.
func (s *sandboxStorm) readHost() (host, error) {
	h, err := s.storm.readHost()
	if err != nil {
		return nil, err
	}
	// Output that a client was told about stays for ten minutes, or as long as the sandbox.
	maps.DeleteFunc(h, func(entry string, _ bool) bool {
		return strings.Contains(entry, "/told/") || strings.HasSuffix(entry, "/told")
	})
	ranges, err := filepath.Glob(dataDir + "/ids/*/*")
	if err != nil {
		return nil, err
	}
	for _, path := range ranges {
		target, _ := os.Readlink(path) // of a range of ids, whose it is
		h["data "+path+" "+target] = true
	}
	return h, nil
}

func (s *sandboxStorm) host() host {
	s.storm.t.Helper()
	h, err := s.readHost()
	if err != nil {
		s.storm.t.Fatal(err)
	}
	return h
}

// isBack holds that the host is as it was before.
func (s *sandboxStorm) isBack(what string, before host) {
	s.storm.t.Helper()
	if left := before.differsFrom(s.readHost); left != "" {
		s.storm.t.Errorf("%s: left behind:\n%s", what, left)
	}
}

// works runs a command that has to succeed and to say nothing that is wrong.
func (s *sandboxStorm) works(what string, args ...string) result {
	s.storm.t.Helper()
	got := run(s.storm.t, s.command(args...))
	if got.code != 0 || got.stderr != "" {
		s.storm.t.Errorf("%s: %q: %s", what, args, answered(got))
	}
	return got
}

// takeDown is down of what may be there, and may be no more than remains.
func (s *sandboxStorm) takeDown(what string) {
	s.storm.t.Helper()
	got := run(s.storm.t, s.command("down", "c"))
	if got.code != 0 && !strings.Contains(got.stderr, "c does not exist") || strings.Count(got.stderr, "\n") > 1 {
		s.storm.t.Errorf("%s: down: %s", what, answered(got))
	}
}

// upAgain is another up, whose sandbox works and is taken down.
func (s *sandboxStorm) upAgain(what string) {
	s.storm.t.Helper()
	got := run(s.storm.t, s.command("up", "c"))
	if got.code != 0 || got.stdout != "c\n" || got.stderr != "" && got.stderr != "c is up already\n" {
		s.storm.t.Errorf("%s: up: %s", what, answered(got))
	}
	s.goesOn(what)
	s.works(what, "down", "c")
}

// goesOn holds that the sandbox c is up and works.
func (s *sandboxStorm) goesOn(what string) {
	s.storm.t.Helper()
	if got := s.works(what, "exec", "c", "echo", "usable"); got.stdout != "usable\n" {
		s.storm.t.Errorf("%s: exec: %s", what, answered(got))
	}
}

// pruned has prune take what is left, and down what is up.
func (s *sandboxStorm) pruned(what string) {
	s.storm.t.Helper()
	s.works(what, "prune")
	if slices.Contains(strings.Fields(s.works(what, "list", "-q").stdout), "c") {
		s.goesOn(what)
		s.works(what, "down", "c")
	}
}

// cleared takes up what is detached in c, which ends, and then c is at rest.
func (s *sandboxStorm) cleared(what string) {
	s.storm.t.Helper()
	for id, e := range s.execs("c") {
		if !e.Detached {
			continue
		}
		got := run(s.storm.t, s.command("attach", "--kill", "c", id)) // it may have ended, somehow
		if got.code != 0 && got.code != 3 && got.code != 128+9 && !strings.Contains(got.stderr, fmt.Sprintf("no detached exec %s", id)) {
			s.storm.t.Errorf("%s: attach: %s", what, answered(got))
		}
	}
	s.goesOn(what)
}
