package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// patience is how long any one command or condition may take. Nothing here
// takes a tenth of it unless it hangs.
const patience = testhost.Patience

// A result is what a finished command left: its exit code (128+n if signal n
// ended it) and what it printed.
type result struct {
	code           int
	stdout, stderr string
}

// run runs the command to its end. The output goes through files, not pipes:
// a container that a command leaves behind holds them open, and waiting for a
// pipe's end would be waiting for the container.
func run(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	return start(t, cmd).wait()
}

// A testProcess is a command that a test has started. The command prints into files. The test's
// end kills it.
type testProcess struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  [2]string // paths of what it prints on stdout and stderr
	done chan struct{}
	err  error // of Wait, once done is closed
}

func start(t testing.TB, cmd *exec.Cmd) *testProcess {
	t.Helper()
	r := begin(t, cmd)
	t.Cleanup(r.kill)
	return r
}

// kill ends the command, if it has not ended.
func (r *testProcess) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

// begin starts a command that the caller ends.
func begin(t testing.TB, cmd *exec.Cmd) *testProcess {
	t.Helper()
	r := &testProcess{t: t, cmd: cmd, done: make(chan struct{})}
	dir := t.TempDir()
	for i, stream := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		if *stream != nil {
			continue
		}
		f, err := os.Create(filepath.Join(dir, []string{"stdout", "stderr"}[i]))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		*stream, r.out[i] = f, f.Name()
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		r.err = cmd.Wait()
	}()
	return r
}

// wait waits for the command's end and fails the test if it does not come.
func (r *testProcess) wait() result {
	r.t.Helper()
	select {
	case <-r.done:
		var exit *exec.ExitError
		if r.err != nil && !errors.As(r.err, &exit) {
			r.t.Fatalf("%q: %v", r.cmd.Args, r.err)
		}
	case <-time.After(patience):
		r.t.Fatalf("%q has not ended after %v; where it hangs, at the end of its stderr: %s", r.cmd.Args, patience, r.abort())
	}
	return result{code: exitCode(r.cmd.ProcessState), stdout: r.stdout(), stderr: r.stderr()}
}

// abort has a Go program tell what each goroutine waits for.
func (r *testProcess) abort() (stderr string) {
	_ = r.cmd.Process.Signal(syscall.SIGABRT)
	select {
	case <-r.done:
	case <-time.After(5 * time.Second):
	}
	return r.stderr()
}

// ended says whether the command has ended; wait then returns at once.
func (r *testProcess) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// prints waits until the command has printed just that on stdout.
func (r *testProcess) prints(text string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%q prints %q", r.cmd.Args, text), func() bool {
		ended := r.ended()
		if r.stdout() == text {
			return true
		}
		if ended {
			r.t.Fatalf("%q ended; stdout %q, stderr %q", r.cmd.Args, r.stdout(), r.stderr())
		}
		return false
	})
}

func (r *testProcess) stdout() string { return content(r.t, r.out[0]) }
func (r *testProcess) stderr() string { return content(r.t, r.out[1]) }

// content reads a file that must be there; no name is no content.
func content(t testing.TB, path string) string {
	t.Helper()
	if path == "" {
		return ""
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// eventually waits for a condition of the kernel or another process that
// nothing announces.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testhost.Eventually(t, what, holds)
}
