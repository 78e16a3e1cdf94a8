package streams

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// modePause is the time between two looks at the mode of a terminal without further input.
const modePause = 100 * time.Millisecond

// TypeIn types all of src on the terminal, and then the end of input, since a terminal has no
// end of its own: the end-of-file character, twice within a line. There the first one only
// hands over the typed text (termios(3), "VEOF").
//
// The terminal loses an end of input when it leaves the canonical mode: a shell that starts
// reads a zero byte in its place. So TypeIn types the end again after each change of the mode,
// until the owner closes the master.
func TypeIn(master *os.File, src io.Reader) {
	typed := lastByte{to: master, last: '\n'}
	_, _ = io.Copy(&typed, src) // no more comes, for any reason
	mode, err := modeOf(master)
	if err != nil {
		return // the command has ended
	}
	if typed.last != '\n' {
		mode.end(master)
	}
	for {
		mode.end(master)
		before := mode
		for mode == before {
			time.Sleep(modePause)
			if mode, err = modeOf(master); err != nil {
				return
			}
		}
	}
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

// An inputMode is the part of a terminal's mode that decides about the end of input.
type inputMode struct {
	canonical bool
	// eof is the end-of-file character; 0: no character ends the input.
	eof byte
}

// modeOf fails if the master is closed.
func modeOf(master *os.File) (m inputMode, err error) {
	err = descriptor.Use(master, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			m = inputMode{t.Lflag&unix.ICANON != 0, t.Cc[unix.VEOF]}
		}
		return err
	})
	return m, err
}

func (m inputMode) end(master *os.File) {
	if m.eof != 0 {
		_, _ = master.Write([]byte{m.eof}) // the command may end at any time
	}
}
