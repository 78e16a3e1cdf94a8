package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/patch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A Conversation asks the caller of the program questions, and prints messages. It
// writes to the standard error: the standard output belongs to the command.
type Conversation struct {
	In  *os.File
	Out io.Writer
	// Attended says that a person answers at a terminal. The answers of a script
	// come from a pipe or a file, or there are none.
	Attended bool
	// ended says that the input has ended: no answer comes any more.
	ended bool
	// Relay receives the signals of this program. It is nil where nothing does.
	Relay *relay.Signals
}

// ErrTerminalClosed says that a person can give no answer any more: the terminal is
// gone, or the person typed Ctrl-D.
var ErrTerminalClosed = errors.New("the terminal is closed")

// Say prints a line.
func (t *Conversation) Say(format string, args ...any) {
	fmt.Fprintf(t.Out, format+"\n", args...)
}

// maxListed bounds the list before a question. The same number of changes with a warning
// follows the list.
const maxListed = 50

// list names changes with their counts, after a title that may be empty.
func (t *Conversation) list(title string, all []sandbox.Change) {
	counts := map[sandbox.ChangeKind]int{}
	for _, c := range all {
		counts[c.Kind]++
	}
	t.Say("%s%s: %d created, %d modified, %d deleted", title, ChangeCount(len(all)),
		counts[sandbox.Created], counts[sandbox.Modified], counts[sandbox.Deleted])
	listed, marked := 0, 0
	for i, c := range all {
		if i >= maxListed && (c.Warning == "" || marked == maxListed) {
			continue
		}
		if i >= maxListed {
			marked++
		}
		listed++
		t.Say("%s", t.coloured(c))
	}
	if more := len(all) - listed; more > 0 {
		t.Say("  … and %d more", more)
	}
}

// LeftOut lists paths that an apply or a file leaves out.
func (t *Conversation) LeftOut(all []sandbox.Unapplied) {
	t.listReasons("left out", all)
	if n := len(all); n > maxListed && all[n-1].Path == "" {
		t.Say("left out: %s", streams.Escaped(all[n-1].Reason))
	}
}

// listReasons lists paths with the reasons.
func (t *Conversation) listReasons(title string, all []sandbox.Unapplied) {
	for _, u := range all[:min(len(all), maxListed)] {
		t.Say("%s: %s: %s", title, streams.Visible(u.Path), streams.Escaped(u.Reason))
	}
	if more := len(all) - maxListed; more > 0 {
		t.Say("%s: %d more", title, more)
	}
}

func (t *Conversation) coloured(c sandbox.Change) string {
	line := ChangeLine(c)
	if !IsTerminal(t.Out) || patch.Colourless() {
		return line
	}
	colour := map[sandbox.ChangeKind]string{sandbox.Created: "32", sandbox.Modified: "33", sandbox.Deleted: "31"}[c.Kind]
	return "\x1b[" + colour + "m" + line + "\x1b[0m"
}

// dropTyped drops the keys that a person typed before the first question: these are
// no answers.
func (t *Conversation) dropTyped() {
	if t.Attended {
		_ = unix.IoctlSetInt(int(t.In.Fd()), unix.TCFLSH, unix.TCIFLUSH) // the terminal may be gone
	}
}

// maxAnswer bounds a line of the standard input.
const maxAnswer = 64 << 10

// Ask reads one line and not one byte more: the next byte may be for another reader.
// A script without another line gives the empty answer. A terminal without one is
// errTerminalClosed, also after a part of a line. The end of ctx interrupts ask.
func (t *Conversation) Ask(ctx context.Context, question string) (string, error) {
	if t.ended {
		return "", t.noAnswer(nil)
	}
	fmt.Fprint(t.Out, question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() { // ends with the program, if nobody ever answers
		text, err := readLine(t.In)
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		t.Say("")
		return "", context.Cause(ctx)
	case l := <-read:
		if !IsTerminal(t.In) || l.err != nil {
			t.Say("%s", streams.Visible(l.text)) // a terminal has shown the text already
		}
		if l.err != nil {
			t.ended = true
			return strings.TrimSpace(l.text), t.noAnswer(l.err)
		}
		return strings.TrimSpace(l.text), nil
	}
}

// noAnswer is the error of a question after the end of the input.
func (t *Conversation) noAnswer(err error) error {
	switch {
	case t.Attended:
		return ErrTerminalClosed
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

func readLine(in io.Reader) (string, error) {
	var text []byte
	var b [1]byte
	for len(text) < maxAnswer {
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return string(text), err
		}
		if b[0] == '\n' {
			return string(text), nil
		}
		text = append(text, b[0])
	}
	return "", fmt.Errorf("read an answer: more than %d bytes; give a shorter one", maxAnswer)
}

// IsTerminal says whether a reader or writer is a terminal.
func IsTerminal(of any) bool {
	f, ok := of.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}
