package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sandboxes runs do and its kin with a state root of the test's own, which the
// test's end finds empty.
type sandboxes struct {
	t    testing.TB
	root string
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
// than the folders it always has.
func (s *sandboxes) state() []string {
	var left []string
	for _, pattern := range []string{"@*/*", "[^@]*"} {
		found, err := filepath.Glob(filepath.Join(s.root, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

func (s *sandboxes) command(args ...string) *exec.Cmd {
	return exec.Command(binary(s.t), append([]string{"--root", s.root}, args...)...)
}

// do runs do with the arguments.
func (s *sandboxes) do(args ...string) result {
	s.t.Helper()
	return run(s.t, s.command(append([]string{"do"}, args...)...))
}

// outcome is the Result that do --json prints.
type outcome struct {
	ID              string      `json:"id"`
	Status          string      `json:"status"`
	ExitCode        int         `json:"exit_code"`
	Signal          string      `json:"signal"`
	Reason          string      `json:"reason"`
	Stdout          string      `json:"stdout"`
	StdoutBase64    []byte      `json:"stdout_base64"`
	Stderr          string      `json:"stderr"`
	StdoutTruncated bool        `json:"stdout_truncated"`
	DurationMS      float64     `json:"duration_ms"`
	CPUMS           float64     `json:"cpu_ms"`
	PeakMemoryBytes uint64      `json:"peak_memory_bytes"`
	Violations      []violation `json:"violations"`
	Isolation       string      `json:"isolation"`
	Limits          struct{ Memory, CPU, Pids, Disk, IO string }
}

type violation struct{ Kind, Detail string }

// json runs do --json with the arguments and holds what is true of every
// result: do ends with the result's exit code and prints nothing beside it, or
// no command ran and do says why.
func (s *sandboxes) json(args ...string) outcome {
	s.t.Helper()
	got := s.do(append([]string{"--json"}, args...)...)
	var o outcome
	decode(s.t, got.stdout, &o)
	ran := got.code == o.ExitCode && got.stderr == ""
	failed := got.code >= 125 && got.code <= 127 && o.ExitCode == -1 && o.Status == "error" && o.Reason != ""
	if !ran && !failed || strings.Count(got.stdout, "\n") != 1 {
		s.t.Errorf("do %q: status %d, stdout %q, stderr %q", args, got.code, got.stdout, got.stderr)
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
