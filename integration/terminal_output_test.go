package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// A program on a terminal of its own prints newlines and carriage returns. runc passes them
// on as they are; the caller's terminal, if the output goes there, makes "\r\n" of newlines.
var (
	printing     = []string{"sh", "-c", `printf 'a\nb\r\nc\rd\te\n\n'`}
	redirectedAs = "a\nb\r\nc\rd\te\n\n"
	capturedAs   = "a\r\nb\r\r\nc\rd\te\r\n\r\n"
)

// printsOnTerminal runs the command twice: with its output in a file and a terminal on
// stderr, and with all three streams on a terminal.
func printsOnTerminal(t *testing.T, tries int, command func() *exec.Cmd) {
	t.Helper()
	printsOn(t, "redirected", redirectedAs, tries, func() (string, result) {
		got := redirected(t, command())
		return got.stdout, got
	})
	printsOn(t, "captured", capturedAs, tries, func() (string, result) {
		term, p := onTerminal(t, command())
		got := p.wait()
		<-term.closed
		return term.output(), got
	})
}

func printsOn(t *testing.T, what, want string, tries int, try func() (string, result)) {
	t.Helper()
	var output string
	for range tries {
		var got result
		if output, got = try(); got.code != 0 {
			t.Fatalf("%s: %+v", what, got)
		}
		if output == want {
			return
		}
	}
	t.Errorf("%s: %q, want %q", what, output, want)
}

// triesFor is how many runs of a command may be needed for one right output. runc sets up the
// terminal while the command runs already: on a busy machine the command is sometimes first.
func triesFor(t *testing.T, r *ociRuntime) int {
	if r.program == binary(t) {
		return 1
	}
	return 20
}

// redirected runs the command with a terminal on stderr alone.
func redirected(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	cmd.Stderr = tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the caller's own terminal is not used
	return run(t, cmd)
}

func TestTerminalOutputIsRuncs(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		b := newBundle(t, printing, withTerminal)
		t.Run("run", func(t *testing.T) {
			printsOnTerminal(t, triesFor(t, r), func() *exec.Cmd { return r.command("run", "--bundle", b.dir, "printing") })
		})
		r.started(newBundle(t, []string{"sleep", "1000"}))
		t.Run("exec", func(t *testing.T) {
			printsOnTerminal(t, triesFor(t, r), func() *exec.Cmd { return r.command(append([]string{"exec", "--tty", "c"}, printing...)...) })
		})
	})
}

func TestTerminalOutputOfSandboxesIsRuncs(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	for name, args := range map[string][]string{
		"do": {"do", "-t", "--"}, "do with input": {"do", "-i", "-t", "--"},
		"exec": {"exec", "-t", "box"}, "exec with input": {"exec", "-i", "-t", "box"},
	} {
		t.Run(name, func(t *testing.T) {
			printsOnTerminal(t, 1, func() *exec.Cmd { return s.command(append(args, printing...)...) })
		})
	}
}

// The pidfd of a process with a terminal of its own still reaches the caller's socket.
func TestPidfdOfAProcessOnATerminalArrives(t *testing.T) {
	likeRunc(t, func(t *testing.T, r *ociRuntime) {
		r.started(newBundle(t, []string{"sleep", "1000"}))
		socket := listenForFDs(t)
		cmd := r.command("exec", "--tty", "--pidfd-socket", socket.path, "c", "true")
		if got := redirected(t, cmd); got.code != 0 {
			t.Errorf("%+v", got)
		}
		text, files := socket.receive(t)
		if len(files) != 1 || text != "setns" {
			t.Fatalf("%q with %d descriptors", text, len(files))
		}
		if link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", files[0].Fd())); err != nil || filepath.Base(link) != "[pidfd]" && link != "anon_inode:[pidfd]" {
			t.Errorf("%q, %v", link, err)
		}
	})
}

// shortOutputsVariable is how many outputs of each kind. By hand it may be 1000.
const shortOutputsVariable = "SANDBOX_RUNTIME_INTEGRATION_SHORT_OUTPUTS"

func shortOutputs(t *testing.T) int {
	t.Helper()
	text := os.Getenv(shortOutputsVariable)
	if text == "" {
		return 50
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A command that prints one line and ends at once: the line arrives whole and unchanged.
func TestShortTerminalOutputsAreWhole(t *testing.T) {
	s := newSandboxes(t)
	s.up("box")
	r := ours(t)
	b := newBundle(t, []string{"echo", "short"}, withTerminal)
	r.started(newBundle(t, []string{"sleep", "1000"}))
	for name, command := range map[string]func(i int) *exec.Cmd{
		"run":               func(i int) *exec.Cmd { return r.command("run", "--bundle", b.dir, fmt.Sprintf("short-%d", i)) },
		"exec":              func(int) *exec.Cmd { return r.command("exec", "--tty", "c", "echo", "short") },
		"do":                func(int) *exec.Cmd { return s.command("do", "-t", "--", "echo", "short") },
		"exec in a sandbox": func(int) *exec.Cmd { return s.command("exec", "-t", "box", "echo", "short") },
	} {
		t.Run(name, func(t *testing.T) {
			var all sync.WaitGroup
			defer all.Wait()
			numbers := make(chan int)
			for range 4 { // at once: a process may end before another one looks
				all.Go(func() {
					for i := range numbers {
						if got := shortOutput(command(i)); got != "short\n" {
							t.Errorf("%d: %s", i, got)
						}
					}
				})
			}
			for i := range shortOutputs(t) {
				numbers <- i
			}
			close(numbers)
		})
	}
}

// shortOutput is the redirected output of the command.
func shortOutput(cmd *exec.Cmd) string {
	master, tty, err := pty.Open()
	if err != nil {
		return err.Error()
	}
	defer master.Close()
	defer tty.Close()
	cmd.Stderr = tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Sprintf("%q, %v", out, err)
	}
	return string(out)
}
