package integration

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A whirl is a command that is hit at random moments.
type whirl struct {
	name    string
	before  func(*storm)
	args    []string
	recover []string
}

func whirls(bundle string) []whirl {
	create := []string{"create", "--bundle", bundle, "c"}
	running := func(s *storm) {
		s.oci.run("run", "--detach", "--bundle", bundle, "c")
		pid := s.oci.state("c").PID
		eventually(s.t, "the program runs", func() bool { return strings.HasPrefix(commandOf(pid), "sleep") })
	}
	return []whirl{
		{"create", nil, create, deleteForce},
		{"run", nil, []string{"run", "--bundle", bundle, "c"}, deleteForce},
		{"exec", running, []string{"exec", "--detach", "c", "sleep", "1000"}, deleteForce},
		{"delete --force", running, deleteForce, deleteForce},
		{"do", nil, []string{"do", "--", "sleep", "1000"}, []string{"prune"}},
	}
}

// Between two system calls, too: the runtime with what it has started.
func TestKilledAtRandomMoments(t *testing.T) {
	testhost.Long(t)
	s := newStorm(t)
	for _, w := range whirls(s.bundle) {
		t.Run(w.name, func(t *testing.T) {
			for range 25 {
				s.of(t).hit(w, func(p *testProcess) int {
					time.Sleep(rand.N(span))
					return p.cmd.Process.Pid
				})
			}
		})
	}
}

// The runtime lives, and one of the processes dies with which it sets up a
// container: it says so or the container is there, and a failure leaves nothing
// to recover.
func TestChildrenKilledAtRandomMoments(t *testing.T) {
	testhost.Long(t)
	s := newStorm(t)
	for _, w := range whirls(s.bundle) {
		if w.name == "delete --force" { // it has none
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			hits := 0
			for range 40 {
				hits += s.of(t).hit(w, aChild)
			}
			if hits == 0 {
				t.Error("no child was killed")
			}
			t.Logf("%d children killed", hits)
		})
	}
}

// span is some of the time that the commands take.
const span = 40 * time.Millisecond

// hit starts the command, kills the process that target chooses at a random
// moment, 0 being none, recovers, and compares.
func (s *storm) hit(w whirl, target func(*testProcess) int) (hits int) {
	s.t.Helper()
	before := s.host()
	if w.before != nil {
		w.before(s)
	}
	met := s.host()
	p := start(s.t, s.oci.command(w.args...))
	what := "nothing"
	if pid := target(p); pid != 0 && !p.ended() {
		what = strconv.Quote(commandOf(pid))
		if unix.Kill(pid, unix.SIGKILL) == nil {
			hits = 1
		}
		eventually(s.t, "the killed process has ended", func() bool { return !alive(pid) })
	}
	s.settle(w, p, met, what)
	s.recover("killed "+what, w.recover, before)
	return hits
}

// settle ends a command that stays, and holds of one that failed by itself
// that it left the host as it met it.
func (s *storm) settle(w whirl, p *testProcess, met host, what string) {
	s.t.Helper()
	// What was killed may have been but a helper: then the command goes on to
	// start what it stays with.
	eventually(s.t, "the command has ended, or a child", func() bool {
		return p.ended() || len(children(p.cmd.Process.Pid)) > 0
	})
	if stays := w.name == "run" || w.name == "do"; stays && !p.ended() {
		_ = p.cmd.Process.Kill()
		<-p.done
		return
	}
	got := p.wait()
	if got.code == 0 || got.code == 128+int(unix.SIGKILL) {
		return
	}
	if got.stderr == "" {
		s.t.Errorf("killed %s: status %d without a word", what, got.code)
	}
	if left := s.remains(met); left != "" {
		s.t.Errorf("killed %s: %s, and left behind:\n%s", what, answered(got), left)
	}
}

// aChild waits for the first child of a command and, a random time later, picks
// one of those that it has then, 0 being none.
func aChild(p *testProcess) int {
	eventually(p.t, "the command has a child, or has ended", func() bool {
		return p.ended() || len(children(p.cmd.Process.Pid)) > 0
	})
	time.Sleep(rand.N(span / 2))
	all := children(p.cmd.Process.Pid)
	if len(all) == 0 {
		return 0
	}
	return all[rand.N(len(all))]
}

func children(pid int) []int {
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	var all []int
	for _, list := range lists {
		data, _ := os.ReadFile(list) // the thread has ended meanwhile, or was not there
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil && alive(child) {
				all = append(all, child)
			}
		}
	}
	return all
}

func commandOf(pid int) string {
	command, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return strings.ReplaceAll(string(command), "\x00", " ")
}
