package review

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// Held lists the paths that apply holds back. A directory that is held back stands for
// all paths below.
func (t *Conversation) Held(all []sandbox.Unapplied) {
	t.listReasons("held back", heldTops(all))
}

// heldTops leaves out each path that lies below another with the same reason.
func heldTops(all []sandbox.Unapplied) []sandbox.Unapplied {
	var tops []sandbox.Unapplied
	for _, u := range all {
		if n := len(tops); n > 0 && u.Reason == tops[n-1].Reason && strings.HasPrefix(u.Path, tops[n-1].Path+"/") {
			continue
		}
		tops = append(tops, u)
	}
	return tops
}

// HeldBack is the error of an apply that has held paths back.
func HeldBack(all []sandbox.Unapplied) error {
	if len(all) == 0 {
		return nil
	}
	return errors.New("paths that run without a question were held back: see the list; --allow-autorun applies them, too")
}

const (
	// maxHeldLines and maxMarkLines bound the lines before a diff.
	maxHeldLines = 1000
	maxMarkLines = 50
)

// WriteMarks writes each change with a warning as a line that git apply and patch skip. The
// changes that run without a question come first.
func WriteMarks(w io.Writer, c *sandbox.Changes) error {
	held, marked := markLines{head: "runs unasked", limit: maxHeldLines}, markLines{head: "look at", limit: maxMarkLines}
	for change, err := range c.List(sandbox.ListOptions{}) {
		if err != nil {
			return err
		}
		if change.Held {
			held.add(change)
		} else if change.Warning != "" {
			marked.add(change)
		}
	}
	out := bufio.NewWriter(w)
	held.write(out)
	marked.write(out)
	return out.Flush()
}

// markLines are lines of one kind.
type markLines struct {
	head  string
	limit int
	last  sandbox.Change
	lines []string
	more  int
}

func (m *markLines) add(c sandbox.Change) {
	if c.Held && c.Warning == m.last.Warning && strings.HasPrefix(c.Path, m.last.Path+"/") {
		return
	}
	m.last = c
	if len(m.lines) == m.limit {
		m.more++
		return
	}
	m.lines = append(m.lines, fmt.Sprintf("# %s: %s: %s", m.head, streams.Visible(c.Path), streams.Escaped(c.Warning)))
}

func (m *markLines) write(w io.Writer) {
	for _, line := range m.lines {
		fmt.Fprintln(w, line)
	}
	if m.more > 0 {
		fmt.Fprintf(w, "# %s: %d more\n", m.head, m.more)
	}
}

// Plan shows the changes to apply, and the rest of the changes with the reasons.
func (t *Conversation) Plan(a *sandbox.Applied) {
	if len(a.Changes) > 0 {
		t.list("", applicable(a.Changes))
	}
	t.LeftOut(a.LeftOut)
	t.Held(a.Held)
	if len(a.Changes) == 0 {
		t.Say("nothing to apply")
	}
}

// applicable are changes that an apply writes. The apply holds none of them back, also if
// one runs without a question.
func applicable(all []sandbox.Change) []sandbox.Change {
	all = slices.Clone(all)
	for i := range all {
		all[i].Held = false
	}
	return all
}
