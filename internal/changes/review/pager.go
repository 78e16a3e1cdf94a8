package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/patch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
)

// page shows the output of write: on a terminal with $PAGER or less, else as it is.
func (t *Conversation) page(ctx context.Context, write func(io.Writer) error) error {
	pager := os.Getenv("PAGER")
	if pager == "" {
		if _, err := exec.LookPath("less"); err == nil {
			pager = "less -R"
		}
	}
	f, ok := t.Out.(*os.File)
	if pager == "" || !ok || !IsTerminal(t.Out) || !IsTerminal(t.In) {
		return write(writerUntil(ctx, Visibly(t.Out)))
	}
	if t.Relay == nil {
		return pipeTo(ctx, pager, f, write)
	}
	return t.Relay.Page(func() error { return pipeTo(ctx, pager, f, write) })
}

// pipeTo runs a pager on a terminal with the output of write. The end of ctx ends the
// pager. After the pager the terminal has its old modes again.
func pipeTo(ctx context.Context, pager string, f *os.File, write func(io.Writer) error) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", pager)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, f, f
	cmd.Env = append([]string{"LESS=-R"}, os.Environ()...) // the user's LESS wins: the last one does
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = relay.StartGrace
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if modes, err := term.GetState(int(f.Fd())); err == nil {
		defer func() { _ = term.Restore(int(f.Fd()), modes) }() // the terminal may be gone
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pager %s: %w", pager, err)
	}
	// A child of the pager may hold the pipe, and not read from it.
	stop := context.AfterFunc(ctx, func() { pipe.Close() })
	defer stop()
	err = write(patch.Terminal(pipe))
	if errors.Is(err, unix.EPIPE) || ctx.Err() != nil {
		err = nil // the reader has left the pager
	}
	closed, ended := pipe.Close(), cmd.Wait()
	if errors.Is(closed, os.ErrClosed) {
		closed = nil // the end of ctx has closed the pipe
	}
	if exit, ok := errors.AsType[*exec.ExitError](ended); ok && !exit.Exited() {
		ended = nil // a key has ended it, as ^C
	}
	return errors.Join(err, closed, ended)
}

// Visibly is w, or, if that is a terminal, a writer that sends it nothing but
// text and colours.
func Visibly(w io.Writer) io.Writer {
	if IsTerminal(w) {
		return patch.Terminal(w)
	}
	return w
}
