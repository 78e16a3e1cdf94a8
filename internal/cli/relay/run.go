package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/containerd/console"
	"github.com/muesli/cancelreader"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Streams connect a command in a sandbox with this program's standard
// streams, as the flags -i, -t and --json say.
type Streams struct {
	Input, Terminal bool
	// Keep leaves the output to the Result, which nobody sees else.
	Keep bool
	// Watch has the Result name the changed files, also without Keep.
	Watch bool
	// JoinsLong is called if the writes of a transaction take long to join the sandbox's files. Nil: nothing
	// is called.
	JoinsLong func()
	stdin     cancelreader.CancelReader
	host      console.Console // made raw; nil: it was not
}

// open gives the command its streams.
func (s *Streams) open(c *sandbox.Command) error {
	if !s.Keep {
		c.Stdout, c.Stderr, c.NoFiles = os.Stdout, os.Stderr, !s.Watch
	}
	if s.Input {
		// When the command has ended, further input is for this program's questions.
		stdin, err := cancelreader.NewReader(os.Stdin)
		if err != nil { // epoll(7) takes no files and no /dev/null, whose reads do not wait either
			stdin, err = cancelreader.NewReader(struct{ io.Reader }{os.Stdin})
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		s.stdin, c.Stdin = stdin, stdin
	}
	if !s.Terminal {
		return nil
	}
	size := terminalSize()
	c.Terminal, c.Stderr = &size, nil // a terminal has one output
	c.PlainNewlines = true            // the caller's terminal makes "\r\n" of them
	return s.rawInput()
}

// rawInput hands every key to the command, ^C included, if it gets input. The output of
// the terminal stays as it is (OPOST, termios(3)).
func (s *Streams) rawInput() error {
	if !s.Input {
		return nil
	}
	host, err := console.ConsoleFromFile(os.Stdin)
	if err != nil {
		return nil //nolint:nilerr // it is no terminal
	}
	if err := host.SetRaw(); err != nil {
		return fmt.Errorf("make terminal raw: %w", err)
	}
	s.host = host
	return nil
}

// close gives the terminal back.
func (s *Streams) close() {
	if s.stdin != nil {
		s.stdin.Cancel()
	}
	s.resetHost()
}

func (s *Streams) resetHost() {
	if s.host != nil {
		_ = s.host.Reset() // it may be gone
	}
}

// terminalEnv is the environment of a command on a terminal: the caller's TERM, and a prompt
// that names the sandbox. Variables of the sandbox's configuration and of the command win.
func terminalEnv(box sandbox.Info, command map[string]string) map[string]string {
	env := map[string]string{}
	if term := os.Getenv("TERM"); term != "" {
		env["TERM"] = term
	}
	if box.Isolation != sandbox.IsolationNone {
		env["PS1"] = "(" + box.ID + ") $PWD$ " // in the form that each POSIX shell knows
		env["debian_chroot"] = box.ID          // of Debian's /etc/bash.bashrc, which sets PS1 anew
	}
	for name := range box.Config.Env {
		delete(env, name)
	}
	maps.Copy(env, command)
	return env
}

// terminalSize is that of the terminal this program is on, or a usual one.
func terminalSize() sandbox.Winsize {
	for _, f := range []*os.File{os.Stdout, os.Stdin, os.Stderr} {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return sandbox.Winsize{Rows: uint16(rows), Columns: uint16(cols)}
		}
	}
	return sandbox.Winsize{Rows: 24, Columns: 80}
}

// ErrEmptyCommand is the error for a script's unset variable.
var ErrEmptyCommand = errors.New("the command is empty; write a program's name or path first")

// Run runs the command in the sandbox until it has ended; announce, if any, is
// told of it at its start. A command that can't be executed is a
// *[sandbox.NotRunError].
func Run(ctx context.Context, box *sandbox.Sandbox, c sandbox.Command, streams *Streams, relay *Signals,
	announce func(*sandbox.Process) error,
) (sandbox.Result, error) {
	none := sandbox.Result{ID: box.ID()}
	if err := streams.open(&c); err != nil {
		return none, err
	}
	defer streams.close()
	relay.restoring(streams.resetHost)
	if streams.Terminal {
		info, err := box.Info(ctx)
		if err != nil {
			return none, CauseOf(ctx, err)
		}
		c.Env = terminalEnv(info, c.Env)
	}
	relay.starting()
	p, err := box.Start(ctx, c)
	if err != nil {
		return none, CauseOf(ctx, err)
	}
	relay.to(p)
	defer relay.ended()
	if announce != nil {
		if err := announce(p); err != nil {
			return none, errors.Join(err, p.Close())
		}
	}
	if streams.JoinsLong != nil && c.Transaction {
		defer streams.tellJoin(p.Joining())()
	}
	result, err := p.Wait()
	if err != nil {
		return none, err
	}
	relay.explain(&result)
	if result.Status == sandbox.StatusError {
		return result, p.Started(context.WithoutCancel(ctx)) // says why, at once
	}
	return result, nil
}

// joinTime is how long a join may take before a message tells of it.
const joinTime = time.Second

// tellJoin calls JoinsLong if the join of a transaction takes long, until done is called.
func (s *Streams) tellJoin(joining <-chan struct{}) (done func()) {
	over, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		select {
		case <-joining:
		case <-over:
			return
		}
		select {
		case <-time.After(joinTime):
			s.JoinsLong()
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-told
	}
}

// CauseOf prefers the cause of a cancelled context to the error that followed from it.
func CauseOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
