package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// sandboxes runs do and its kin with a state root of the test's own, which the
// test's end finds empty.
type sandboxes struct {
	t    testing.TB
	root string
	// listening is the launcher that do, up and others use, if all tests do so.
	listening throughLauncher
}

func newSandboxes(t *testing.T) *sandboxes {
	t.Helper()
	leavesNothing(t)
	s := &sandboxes{t: t, root: filepath.Join(t.TempDir(), "state")}
	t.Cleanup(func() {
		if left := s.state(); len(left) != 0 {
			t.Errorf("left in the state root: %q", left)
		}
	})
	return s
}

// state lists what the state root holds of sandboxes: all that lies deeper
// than the folders it always has, and the ranges of ids that are its. The processes of the proxied network
// live longer than its sandboxes, and have files of their own. So do the copies in @etc.
func (s *sandboxes) state() []string { return s.settled(s.stateNow) }

func (s *sandboxes) stateNow() []string {
	left := append(s.ranges(), s.ratchets()...)
	for _, pattern := range []string{"@[^e]*/*", "@egress/boxes/*", "[^@]*"} {
		found, err := filepath.Glob(filepath.Join(s.root, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		left = append(left, found...)
	}
	return s.withoutBlanks(left)
}

// ranges lists the ids that sandboxes of the state root have: links that name it.
func (s *sandboxes) ranges() []string {
	links, err := filepath.Glob(dataDir + "/ids/*/*")
	if err != nil {
		s.t.Fatal(err)
	}
	return slices.DeleteFunc(links, func(link string) bool {
		owner, err := os.Readlink(link)
		return err != nil || !strings.Contains(owner, `"`+s.root+`"`)
	})
}

// ratchets lists the files with the levels of sandboxes of the state root.
func (s *sandboxes) ratchets() []string {
	files, err := filepath.Glob(filepath.Join(dataDir, "ratchets", record.Roots{State: s.root}.CgroupPrefix()+"*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return files
}

func (s *sandboxes) command(args ...string) *exec.Cmd {
	where := []string{"--root", s.root}
	if s.goesThrough(args) {
		where = []string{"--socket", s.listening.socket}
	}
	return exec.Command(binary(s.t), append(where, args...)...)
}

// program is the begin of a command line that a message names: it has the flags of command.
func (s *sandboxes) program() string {
	if s.listening.socket != "" {
		return "sandbox-runtime --socket " + s.listening.socket
	}
	return "sandbox-runtime --root " + s.root
}

// do runs do with the arguments.
func (s *sandboxes) do(args ...string) result {
	s.t.Helper()
	return run(s.t, s.command(append([]string{"do"}, args...)...))
}

// up has a sandbox of this name, which the test's end removes.
func (s *sandboxes) up(name string, flags ...string) {
	s.t.Helper()
	got := run(s.t, s.command(append(append([]string{"up"}, flags...), name)...))
	if got.code != 0 || got.stdout != name+"\n" {
		s.t.Fatalf("up %s: %+v", name, got)
	}
	s.t.Cleanup(func() { s.downIfUp(name) })
}

// downIfUp removes a sandbox that the test has left.
func (s *sandboxes) downIfUp(name string) {
	if !exists(filepath.Join(s.root, "@sandboxes", name)) {
		return
	}
	if got := run(s.t, exec.Command(binary(s.t), "--root", s.root, "down", name)); got.code != 0 { // a launcher of the test can have ended
		s.t.Errorf("down %s: %+v", name, got)
	}
}

// exec runs exec with the arguments.
func (s *sandboxes) exec(args ...string) result {
	s.t.Helper()
	return run(s.t, s.command(append([]string{"exec"}, args...)...))
}

// sh runs a script in a sandbox, which is expected to work, and returns what it
// prints.
func (s *sandboxes) sh(name, script string) string {
	s.t.Helper()
	got := s.exec(name, "sh", "-c", script)
	if got.code != 0 || got.stderr != "" {
		s.t.Errorf("exec %s sh -c %q: %+v", name, script, got)
	}
	return got.stdout
}

// detached starts a script in a sandbox that stays behind, and returns its id.
func (s *sandboxes) detached(name, script string) (id string) {
	s.t.Helper()
	got := s.exec("--detach", name, "sh", "-c", script)
	id = strings.TrimSuffix(got.stdout, "\n")
	if got.code != 0 || id == "" || got.stderr != "" {
		s.t.Fatalf("exec --detach %s: %+v", name, got)
	}
	return id
}

// execs are the commands of a sandbox, by their ids.
func (s *sandboxes) execs(name string) map[string]execInfo {
	s.t.Helper()
	var list []execInfo
	decode(s.t, s.oci("ps", "--execs", "--format", "json", name).stdout, &list)
	execs := map[string]execInfo{}
	for _, e := range list {
		execs[e.ID] = e
	}
	return execs
}

// An execInfo is one command of a sandbox.
type execInfo struct {
	ID       string
	Args     []string
	Pids     []int
	Started  time.Time
	Detached bool
	Ended    bool
}

// outcome is the Result that do --json prints.
type outcome struct {
	ID              string      `json:"id"`
	Exec            string      `json:"exec"`
	Status          string      `json:"status"`
	ExitCode        int         `json:"exit_code"`
	Signal          string      `json:"signal"`
	Reason          string      `json:"reason"`
	Stdout          string      `json:"stdout"`
	StdoutBase64    []byte      `json:"stdout_base64"`
	Stderr          string      `json:"stderr"`
	StdoutTruncated bool        `json:"stdout_truncated"`
	StdoutOmitted   int64       `json:"stdout_omitted_bytes"`
	DurationMS      float64     `json:"duration_ms"`
	CPUMS           float64     `json:"cpu_ms"`
	PeakMemoryBytes uint64      `json:"peak_memory_bytes"`
	Violations      []violation `json:"violations"`
	Notes           []string    `json:"notes"`
	Isolation       string      `json:"isolation"`
	Limits          struct{ Memory, CPU, Pids, Disk, IO string }
	Files           *struct {
		Created, Modified, Deleted, Partial []string
		CreatedBase64                       [][]byte `json:"created_base64"`
		Truncated                           bool
	}
}

type violation struct{ Kind, Detail string }

// json runs do --json with the arguments and holds what is true of every
// result: do ends with the result's exit code and prints nothing beside it, or
// no command ran and do says why.
func (s *sandboxes) json(args ...string) outcome { s.t.Helper(); return s.result("do", args...) }

// execJSON is the same for exec.
func (s *sandboxes) execJSON(args ...string) outcome { s.t.Helper(); return s.result("exec", args...) }

func (s *sandboxes) result(command string, args ...string) outcome {
	s.t.Helper()
	return s.resultOf(run(s.t, s.command(append([]string{command, "--json"}, args...)...)))
}

// resultOf is what a command with --json has printed.
func (s *sandboxes) resultOf(got result) outcome {
	s.t.Helper()
	var o outcome
	decode(s.t, got.stdout, &o)
	// What became of an overlay's changes is told beside the result.
	ran := got.code == o.ExitCode && (got.stderr == "" || strings.HasPrefix(got.stderr, "discarded "))
	failed := got.code >= 125 && got.code <= 127 && o.ExitCode == -1 && o.Status == "error" && o.Reason != ""
	if !ran && !failed || strings.Count(got.stdout, "\n") != 1 {
		s.t.Errorf("status %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
	return o
}

// inLongerTime tries with longer and longer timeouts, the first of which is
// enough on most hosts, until what is to be timed out has got far enough.
func inLongerTime(t testing.TB, first time.Duration, try func(timeout string) bool) {
	t.Helper()
	for timeout := first; !try(timeout.String()); timeout *= 3 {
		if timeout > patience {
			t.Fatalf("not far enough after %s", timeout)
		}
	}
}

// beyond is how much the kernel charges beyond a limit of memory, to what is on its
// way out.
const beyond = 4 << 20

// inTries has what wants a whole processor try again where it seems to have had one:
// while a virtual machine stands still, its time goes on, for whoever was running.
func inTries(try func() outcome, held func(outcome) bool) (o outcome) {
	for range 3 {
		if o = try(); held(o) {
			break
		}
	}
	return o
}

// hit says whether a violation of the kind mentions the word.
func (o outcome) hit(kind, word string) bool {
	return slices.ContainsFunc(o.Violations, func(v violation) bool {
		return v.Kind == kind && strings.Contains(strings.ToLower(v.Detail), word)
	})
}

// hostTool returns the path of a program that the host's /usr has, so that it
// is there inside as well.
func hostTool(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/usr/bin", "/usr/sbin"} {
		if path := filepath.Join(dir, name); exists(path) {
			return path
		}
	}
	need(t, "no "+name+" in /usr/bin")
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
