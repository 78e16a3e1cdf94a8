package patch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf8"
)

// The colours of a diff, as git has them.
const (
	plain   = "\x1b[m"
	bold    = "\x1b[1m"
	red     = "\x1b[31m"
	green   = "\x1b[32m"
	yellow  = "\x1b[33m"
	cyan    = "\x1b[36m"
	reverse = "\x1b[7m"
	upright = "\x1b[27m"
)

// longestHunkHeader is more than "@@ -1,2 +3,4 @@" takes with any numbers.
const longestHunkHeader = 100

// terminal is a diff's way to a terminal; see Terminal.
type terminal struct {
	to io.Writer
	// pending is text that may go on in the next write: the begin of a line, or of a
	// character.
	pending []byte
	inLine  bool
	colour  string
	// old and new are the lines that are left of a hunk.
	old, new int
	// colourless leaves out the colours of lines.
	colourless bool
}

// Terminal colours a diff, and makes visible, reversed and as less does, all characters
// that a terminal might obey or hide: control characters, those that turn the direction of
// writing, invalid UTF-8. The only escape sequences that come out are colours.
//
// If the environment is [Colourless], the lines have no colours.
//
// The diff has to end with a newline, as the output of [Write] does.
func Terminal(w io.Writer) io.Writer {
	return &terminal{to: w, colourless: Colourless()}
}

// Colourless says that the environment forbids colours: by NO_COLOR, or by a terminal that
// obeys no escape sequences.
func Colourless() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }

func (t *terminal) Write(p []byte) (int, error) {
	in := append(t.pending, p...)
	var out bytes.Buffer
	for len(in) > 0 {
		n := t.next(&out, in)
		if n == 0 {
			break
		}
		in = in[n:]
	}
	t.pending = bytes.Clone(in)
	if _, err := t.to.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// next writes the begin of in and returns its length: 0 if it cannot be told yet.
func (t *terminal) next(out *bytes.Buffer, in []byte) int {
	if !t.inLine {
		if !t.begin(in) {
			return 0
		}
		t.inLine = true
		if t.colourless {
			t.colour = ""
		}
		out.WriteString(t.colour)
	}
	if in[0] == '\n' {
		if t.colour != "" {
			out.WriteString(plain)
		}
		out.WriteByte('\n')
		t.inLine = false
		return 1
	}
	if !utf8.FullRune(in) {
		return 0
	}
	r, n := utf8.DecodeRune(in)
	switch {
	case r == utf8.RuneError && n == 1:
		fmt.Fprintf(out, reverse+"<%02X>"+upright, in[0])
	case r == '\t' || unicode.IsGraphic(r):
		out.Write(in[:n])
	case r < ' ' || r == 0x7f:
		out.WriteString(reverse + "^" + string(r^0x40) + upright)
	default:
		fmt.Fprintf(out, reverse+"<U+%04X>"+upright, r)
	}
	return n
}

// begin chooses a line's colour, if enough of it is there.
func (t *terminal) begin(line []byte) bool {
	t.colour = ""
	if t.old > 0 || t.new > 0 {
		t.inHunk(line[0])
		return true
	}
	switch line[0] {
	case '@':
		if bytes.IndexByte(line, '\n') < 0 && len(line) < longestHunkHeader {
			return false
		}
		t.colour = cyan
		t.old, t.new = lengths(line)
	case '#', 'B': // comments, Binary files
		t.colour = yellow
	case '\\', '\n':
	default:
		t.colour = bold
	}
	return true
}

func (t *terminal) inHunk(mark byte) {
	switch mark {
	case '+':
		t.colour = green
		t.new--
	case '-':
		t.colour = red
		t.old--
	case ' ':
		t.old--
		t.new--
	}
}

// lengths are those of a hunk, as its first line tells them.
func lengths(line []byte) (before, after int) {
	var at int
	if _, err := fmt.Sscanf(string(line[:min(len(line), longestHunkHeader)]), "@@ -%d,%d +%d,%d @@", &at, &before, &at, &after); err != nil {
		return 0, 0
	}
	return before, after
}
