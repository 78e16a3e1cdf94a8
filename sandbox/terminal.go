package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/streams"
)

// terminal is the master of the command's terminal, nil if it has none.
func (p *Process) terminal() *os.File {
	if t, ok := p.execution.(interface{ Terminal() *os.File }); ok {
		return t.Terminal()
	}
	return nil
}

// joinTerminal copies between the caller's streams and the command's terminal,
// which the Execution closes.
func (p *Process) joinTerminal(c Command) error {
	master := p.terminal()
	if master == nil {
		return errors.Join(fmt.Errorf("terminal: provider %s %w", p.sandbox.provider.Name(), errUnsupported), p.execution.Close())
	}
	if c.Stdin != nil {
		go typeIn(master, c.Stdin) // until the command ends
	}
	p.streams.Out = []*streams.Stream{{File: master, Raw: -1, To: c.Stdout, Terminal: true}}
	p.streams.Begin()
	return nil
}

// typeIn types all of src, and then the end of input, since a terminal has no end of its
// own: the end-of-file character, twice within a line. There the first one only hands over
// the typed text (termios(3), "VEOF"). The command may end at any time.
func typeIn(master *os.File, src io.Reader) {
	typed := lastByte{to: master, last: '\n'}
	_, _ = io.Copy(&typed, src) // no more comes, for any reason
	end := endOfFile(master)
	if typed.last != '\n' {
		end = append(end, end...)
	}
	_, _ = master.Write(end) // see above
}

// A lastByte keeps the last byte that was written.
type lastByte struct {
	to   io.Writer
	last byte
}

func (l *lastByte) Write(b []byte) (int, error) {
	if len(b) > 0 {
		l.last = b[len(b)-1]
	}
	return l.to.Write(b)
}

// endOfFile is the text that ends the input of this terminal now. Empty: no text does.
func endOfFile(master *os.File) (end []byte) {
	_ = descriptor.Use(master, func(fd int) error { // it may be closed
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil && t.Cc[unix.VEOF] != 0 {
			end = []byte{t.Cc[unix.VEOF]}
		}
		return err
	})
	return end
}

// Resize tells the command's terminal its size; without a terminal it does
// nothing.
func (p *Process) Resize(size Winsize) error {
	if p.execution == nil {
		return errNoProcess
	}
	master := p.terminal()
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
