package egress

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A killed worker is replaced at once, on the same sockets, with the same rules and names. The test prints the time
// until service is back: on a busy host this time says little.
func TestTheWorkerIsKilledUnderLoad(t *testing.T) {
	testhost.Long(t)
	o, e := newOutside(t), newEgress(t)
	boxes := []sandbox{newSandbox(t), newSandbox(t)}
	for i, s := range boxes {
		if err := e.Admit(t.Context(), Box{Key: string(rune('a' + i)), Allow: []string{"good.example", "also.example"}}, s.sockets); err != nil {
			t.Fatal(err)
		}
	}
	first, err := boxes[0].lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	stop := load(t, boxes)
	defer stop()
	const rounds = 100
	var back []time.Duration
	for range rounds {
		old := workers(t, e)
		if len(old) != 1 {
			t.Fatalf("%d workers", len(old))
		}
		kill(t, old[0])
		start := time.Now()
		for boxes[0].fetch("also.example") != nil {
			if time.Since(start) > patience {
				t.Fatal("the sandbox is not served any more")
			}
		}
		back = append(back, time.Since(start))
		if again, err := boxes[0].lookUp("good.example"); err != nil || again != first {
			t.Fatalf("%v, %v; the address was %v", again, err, first)
		}
	}
	t.Logf("service is back after %v, at most %v", median(back), slices.Max(back))
	for _, arrived := range o.arrivals() {
		if !strings.HasPrefix(arrived, "good.example "+goodAddress) && !strings.HasPrefix(arrived, "also.example "+goodAddress) {
			t.Errorf("outside: %s", arrived)
		}
	}
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// load has clients ask for allowed names and others until stop.
func load(t *testing.T, boxes []sandbox) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for _, s := range boxes {
		for _, name := range []string{"good.example", "other.example", "bad.example"} {
			clients.Go(func() {
				for ctx.Err() == nil {
					if err := s.fetch(name); err == nil && name != "good.example" {
						t.Errorf("%s was reached", name)
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
	}
	return func() { cancel(); clients.Wait() }
}

// Without the parent there is no worker, and nothing passes. The names are the same afterwards.
func TestTheParentIsKilled(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example", "also.example", "other.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	first, err := s.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.lookUp("also.example")
	if err != nil {
		t.Fatal(err)
	}
	slow, _, err := s.get(first, "good.example", "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	eventually(t, "the parent's file has both names", func() bool {
		text, _ := os.ReadFile(filepath.Join(e.boxDir("box"), namesName))
		return strings.Count(string(text), "\n") == 2
	})
	worker := workers(t, e)
	kill(t, parents(t, e)[0])
	if _, err := slow.Read(make([]byte, 9)); err == nil || errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("the connection goes on: %v", err)
	}
	eventually(t, "the end of the worker", func() bool { return !worker[0].Lives() })
	if has, err := e.Has(t.Context(), "box"); has || err != nil {
		t.Errorf("the sandbox is served: %v, %v", has, err)
	}
	if err := e.Change(t.Context(), box); !errors.Is(err, ErrUnknown) {
		t.Errorf("change: %v", err)
	}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	if other, err := s.lookUp("other.example"); err != nil || other == first || other == second {
		t.Errorf("a new name has the address %v, %v; the others have %v and %v", other, err, first, second)
	}
	if again, err := s.lookUp("also.example"); err != nil || again != second {
		t.Errorf("%v, %v; the address was %v", again, err, second)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
}

// A killed parent leaves files. Prune keeps those of a parent that lives, and of a sandbox that needs the next parent.
func TestPruneRemovesTheFilesOfAKilledParent(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	files := func() (n int) {
		entries, err := os.ReadDir(e.Dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	prune := func(when string, want int) {
		t.Helper()
		if err := e.Prune(); err != nil || files() != want {
			t.Errorf("%s: %v; %d files, want %d", when, err, files(), want)
		}
	}
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	has := files()
	prune("with a parent", has)
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	above := parents(t, e)
	both := slices.Concat(above, workers(t, e))
	for _, id := range above {
		kill(t, id)
	}
	eventually(t, "the end of the parent and its worker", func() bool {
		return !slices.ContainsFunc(both, func(id process.ID) bool { return id.Lives() })
	})
	prune("with a sandbox", has)
	if err := os.RemoveAll(e.boxDir("box")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is left", func() bool { // the last thread of the parent closes the socket
		if err := e.Prune(); err != nil {
			t.Fatal(err)
		}
		return files() == 0
	})
}

// A worker ends with its parent, even if it is stopped.
func TestAStoppedWorkerEndsWithItsParent(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box"}, s.sockets); err != nil {
		t.Fatal(err)
	}
	worker := workers(t, e)[0]
	if err := unix.Kill(worker.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	kill(t, parents(t, e)[0])
	eventually(t, "the end of the worker", func() bool { return !worker.Lives() })
}

// A worker that does not answer is replaced. The rules are then in force.
func TestAStoppedWorkerIsReplaced(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box"}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	worker := workers(t, e)[0]
	if err := unix.Kill(worker.Pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	box.Allow = []string{"good.example"}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if worker.Lives() {
		t.Error("the old worker lives")
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
}

// The parent has the capabilities for a worker, and no file of its starter, which has ended.
func TestTheParentHasLittle(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	starter := exec.Command("/proc/self/exe")
	starter.Env = append(os.Environ(), starterVariable+"="+e.Dir)
	inherited, err := os.Open("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	starter.ExtraFiles = []*os.File{s.sockets.Streams[0], s.sockets.DNSPackets[0], s.sockets.DNSStreams[0], inherited}
	if text, err := starter.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	parent, worker := parents(t, e)[0], workers(t, e)[0]
	for _, id := range []process.ID{parent, worker} {
		if files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", id.Pid)); err != nil || len(files) < 6 {
			t.Errorf("%q, %v", files, err)
		} else if i := slices.IndexFunc(files, func(f string) bool { to, _ := os.Readlink(f); return to == "/etc/hosts" }); i >= 0 {
			t.Errorf("process %d has the starter's file %s", id.Pid, files[i])
		}
	}
	const few = "00000000000000e0" // CAP_KILL, CAP_SETGID, CAP_SETUID
	wantStatus(t, parent, map[string]string{"CapInh": "0000000000000000", "CapPrm": few, "CapEff": few, "CapBnd": few, "CapAmb": "0000000000000000"})
	const none = "0000000000000000"
	wantStatus(t, worker, map[string]string{
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2",
		"Uid": "1879048191\t1879048191\t1879048191\t1879048191", "Groups": "",
	})
	if session, err := unix.Getsid(parent.Pid); err != nil || session != parent.Pid {
		t.Errorf("the parent is in session %d, %v", session, err)
	}
}

func wantStatus(t *testing.T, id process.ID, want map[string]string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", id.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if wanted, ok := want[name]; ok && strings.TrimSpace(value) != wanted {
			t.Errorf("%s is %q; want %q", name, strings.TrimSpace(value), wanted)
		}
	}
}
