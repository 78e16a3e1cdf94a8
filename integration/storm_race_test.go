package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// An operation is a call that many processes make on the same container.
type operation struct {
	args []string
	// refusals matches what it may answer beside success.
	refusals string
}

// pauses is what a pause may answer beside: somebody resumed or removed it meanwhile, or
// its processes, which others start and kill, did not come to stand still.
const pauses = `|unexpected state THAWED while freezing|unable to freeze`

// operations are in the proportion that keeps the container coming and going.
func operations(bundle, id string) []operation {
	const (
		fates = `container does not exist|container not running` // somebody else killed or deleted it
		begin = `unable to start container process: `
		made  = `container with given ID already exists|was deleted while it was being created|` + begin
	)
	create := operation{[]string{"create", "--bundle", bundle, id}, made}
	execute := operation{[]string{"exec", id, "true"},
		// runc's words where init ends before its namespaces are joined.
		fates + `|cannot exec in a (stopped|paused) container|unable to create new parent process: namespace path: |` + begin}
	return []operation{
		create, create, execute, execute,
		{[]string{"run", "--detach", "--bundle", bundle, id}, made + `|container process is already dead`},
		{[]string{"start", id}, fates + `|cannot start a(n already running container| container that has stopped| container in the paused state)|container process is already dead`},
		{[]string{"kill", id, "KILL"}, fates},
		{[]string{"pause", id}, fates + pauses},
		{[]string{"resume", id}, fates + `|container not paused`},
		{[]string{"state", id}, fates},
		{[]string{"delete", id}, fates + `|cannot delete container ` + id + ` that is not stopped: (running|paused)`},
		{[]string{"delete", "--force", id}, ``},
		{[]string{"list", "--format", "json"}, ``},
	}
}

// Many processes work on the same few containers: each call does what it was
// asked or refuses it for a reason that is true, and deletes leave nothing.
func TestManyProcessesOnFewContainers(t *testing.T) {
	testhost.Long(t)
	for _, ids := range [][]string{{"c"}, {"a", "b", "c"}} {
		t.Run(fmt.Sprintf("%d", len(ids)), func(t *testing.T) {
			leavesNothing(t)
			r := ours(t)
			if err := os.Mkdir(r.root, 0o700); err != nil { // for list
				t.Fatal(err)
			}
			b := newBundle(t, []string{"sleep", "1000"})
			calls := fight(r, b.dir, ids)
			for _, id := range ids {
				r.run("delete", "--force", id)
			}
			t.Logf("%d calls:\n%s", calls.total, calls)
		})
	}
}

// fight has 8 workers make 400 calls.
func fight(r *ociRuntime, bundle string, ids []string) *tally {
	defer resumeEverySecond(r, ids)()
	calls := &tally{t: r.t, seen: map[string]int{}}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 50 {
				all := operations(bundle, ids[rand.N(len(ids))])
				op := all[rand.N(len(all))]
				// With one of the flags for logs, as engines call it: runc's words.
				cmd := exec.Command(r.program, append([]string{"--root", r.root, "--log-format", "text"}, op.args...)...)
				calls.add(op, run(r.t, cmd))
			}
		})
	}
	workers.Wait()
	return calls
}

// resumeEverySecond wakes containers until its result is called: an exec whose
// container is paused while it starts waits, and the worker that would have
// resumed it may have made its last call.
func resumeEverySecond(r *ociRuntime, ids []string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
			}
			for _, id := range ids {
				_ = exec.Command(r.program, "--root", r.root, "resume", id).Run() // most are not paused
			}
		}
	}()
	return func() { close(done); <-ended }
}

var numbers = regexp.MustCompile(`[0-9]+`)

// A tally is what calls answered, and how often.
type tally struct {
	t     testing.TB
	mu    sync.Mutex
	seen  map[string]int
	total int
}

func (y *tally) add(op operation, got result) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.total++
	_, said, _ := strings.Cut(strings.TrimSpace(got.stderr), "msg=")
	if op.args[0] != "list" { // which says it of each
		y.seen[fmt.Sprintf("%s: %d %s", op.args[0], got.code, numbers.ReplaceAllString(said, "N"))]++
	}
	killed := op.args[0] == "exec" && got.code == 128+int(unix.SIGKILL) // with the container it ran in
	if got.code != 0 && !killed && (op.refusals == "" || !regexp.MustCompile(op.refusals).MatchString(said)) ||
		strings.Contains(said, "goroutine ") {
		y.t.Errorf("%q: %s", op.args, answered(got))
	}
	if op.args[0] == "state" && got.code == 0 {
		y.checkState(got.stdout)
	}
}

func (y *tally) checkState(text string) {
	var s containerState
	err := json.Unmarshal([]byte(text), &s)
	known := slices.Contains([]string{"created", "running", "paused", "stopped"}, s.Status)
	if err != nil || !known || s.Bundle == "" || (s.PID > 0) != (s.Status != "stopped") {
		y.t.Errorf("state: %v in %s", err, text)
	}
}

func (y *tally) String() string {
	var lines []string
	for said, n := range y.seen {
		lines = append(lines, fmt.Sprintf("%4d %s", n, said))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
