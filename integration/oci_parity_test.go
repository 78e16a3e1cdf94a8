package integration

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// likeRunc makes the same claims of runc 1.5.2 and of the binary under test.
func likeRunc(t *testing.T, claim func(t *testing.T, r *ociRuntime)) {
	t.Helper()
	t.Run("runc", func(t *testing.T) { leavesNothing(t); claim(t, reference(t)) })
	t.Run("ours", func(t *testing.T) { leavesNothing(t); claim(t, ours(t)) })
}

// shows runs the command and expects this result, stderr as far as the pattern
// goes; NAME in it stands for the program's name. It returns the result.
func (r *ociRuntime) shows(want result, args ...string) result {
	r.t.Helper()
	got := run(r.t, r.command(args...))
	r.compare(got, want, args)
	return got
}

func (r *ociRuntime) compare(got, want result, args []string) {
	r.t.Helper()
	if strings.HasPrefix(got.stdout, "Incorrect Usage") {
		got.stdout = "" // the help text, which runc prints beside what is wrong
	}
	message := regexp.MustCompile(strings.ReplaceAll(want.stderr, "NAME", filepath.Base(r.program)))
	if got.code != want.code || got.stdout != want.stdout || !message.MatchString(got.stderr) || (want.stderr == "" && got.stderr != "") {
		r.t.Errorf("%q: got %+v, want %+v", args, got, want)
	}
}

// started creates and starts the container "c" and waits until its program
// runs: start returns before that.
func (r *ociRuntime) started(b *bundle) (pid int) {
	r.t.Helper()
	pid = r.create(b, "c")
	r.run("start", "c")
	r.awaitProgram(pid)
	return pid
}

func (r *ociRuntime) awaitProgram(pid int) {
	r.t.Helper()
	eventually(r.t, "the program runs", func() bool {
		return !strings.Contains(content(r.t, fmt.Sprintf("/proc/%d/comm", pid)), "runc:[")
	})
}
