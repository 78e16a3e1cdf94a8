package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// joinTerminal copies between the caller's streams and the command's terminal,
// which the Execution closes.
func (p *Process) joinTerminal(c Command) error {
	master := terminalOf(p.execution)
	if master == nil {
		return errors.Join(fmt.Errorf("terminal: provider %s %w", p.sandbox.provider.Name(), errUnsupported), p.execution.Close())
	}
	if c.Stdin != nil {
		go streams.TypeIn(master, c.Stdin) // until the command ends
	}
	p.streams.Out = []*streams.Stream{{File: master, Raw: -1, To: c.Stdout, Terminal: true}}
	p.streams.Begin()
	return nil
}

// Resize tells the command's terminal its size; without a terminal it does
// nothing.
func (p *Process) Resize(size Winsize) error {
	if p.execution == nil {
		return errNoProcess
	}
	master := terminalOf(p.execution)
	if master == nil {
		return nil
	}
	err := descriptor.Use(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
	if errors.Is(err, os.ErrClosed) { // the command has ended
		return nil
	}
	return err
}
