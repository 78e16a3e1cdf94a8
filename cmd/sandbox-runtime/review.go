package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandbox-runtime/sandbox-runtime/internal/patch"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// review asks what is to become of a sandbox's changes, until it is said. What is
// not said is that they are to be discarded, which the sandbox's end does.
func review(ctx context.Context, talk *conversation, c *sandbox.Changes) error {
	all, err := listed(c)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		talk.say("nothing was changed in %s", strings.Join(c.Trees(), ", "))
		return nil
	}
	talk.list(all)
	for {
		answer, err := talk.ask(ctx, "[r]eview, [a]pply, [s]ave, [d]iscard? [d] ")
		if ctx.Err() != nil {
			return unanswered(ctx)
		}
		if err != nil {
			return err
		}
		word, argument, _ := strings.Cut(answer, " ")
		done := false
		switch strings.ToLower(word) {
		case "r", "review":
			err = talk.page(ctx, c.Diff)
		case "a", "apply":
			done, err = applyReviewed(ctx, talk, c, argument)
		case "s", "save":
			done, err = saveReviewed(ctx, talk, c, strings.TrimSpace(argument))
		case "", "d", "discard", "q", "quit":
			talk.say("discarded")
			return nil
		default:
			talk.say("%q is none of these; a PATH... applies only these (one with a space in it as \"a b\"), s FILE saves to a .tar or .patch", answer)
		}
		if ctx.Err() != nil {
			return unanswered(ctx)
		}
		if err != nil {
			talk.say("%s", escaped(err.Error()))
		}
		if !done && talk.ended {
			talk.say("discarded")
		}
		if done || talk.ended {
			return nil
		}
	}
}

// unanswered is why the question was not answered, and what comes of that.
func unanswered(ctx context.Context) error {
	return fmt.Errorf("%w: the changes that were not applied are discarded", context.Cause(ctx))
}

// pathsIn are the paths that an answer names: words, or quoted as the list has
// those that a terminal cannot show.
func pathsIn(answer string) (paths []string, err error) {
	for answer = strings.TrimSpace(answer); answer != ""; answer = strings.TrimSpace(answer) {
		if answer[0] != '"' {
			word, rest, _ := strings.Cut(answer, " ")
			paths, answer = append(paths, word), rest
			continue
		}
		quoted, err := strconv.QuotedPrefix(answer)
		if err != nil {
			return nil, fmt.Errorf(`%s: close the quotation marks, as in "a b"`, visible(answer))
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, err
		}
		paths, answer = append(paths, word), answer[len(quoted):]
	}
	return paths, nil
}

// applyReviewed says whether nothing is left to ask about.
func applyReviewed(ctx context.Context, talk *conversation, c *sandbox.Changes, argument string) (bool, error) {
	paths, err := pathsIn(argument)
	if err != nil {
		return false, err
	}
	o := sandbox.ApplyOptions{Paths: paths}
	done, err := c.Apply(ctx, o)
	var conflict *sandbox.ConflictError
	if errors.As(err, &conflict) {
		talk.say("%s", escaped(err.Error()))
		answer, err := talk.ask(ctx, "overwrite what the host has? [y/N] ")
		if err != nil || !yes(answer) {
			return false, err
		}
		o.Overwrite = true
		done, err = c.Apply(ctx, o)
		if err != nil {
			return false, err
		}
	} else if err != nil {
		return false, err
	}
	talk.leftOut(done.LeftOut)
	talk.say("applied %s", changeCount(len(done.Changes)))
	return len(paths) == 0, nil
}

func yes(answer string) bool { return strings.HasPrefix(strings.ToLower(answer), "y") }

func saveReviewed(ctx context.Context, talk *conversation, c *sandbox.Changes, name string) (bool, error) {
	if name == "" {
		var err error
		if name, err = talk.ask(ctx, "file (.tar or .patch): "); err != nil || name == "" {
			return false, err
		}
	}
	if _, err := saveChanges(talk, c, name); err != nil {
		return false, err
	}
	return true, nil
}

func listed(c *sandbox.Changes) ([]sandbox.Change, error) {
	var all []sandbox.Change
	for change, err := range c.List(sandbox.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		all = append(all, change)
	}
	return all, nil
}

// A conversation is with who sits in front of the program. What it says goes to
// the standard error, since the command has the standard output.
type conversation struct {
	in  *os.File
	out io.Writer
	// ended says that no answer comes any more.
	ended bool
	// relay has the signals of this program; nil: nobody has.
	relay *signalRelay
}

func (t *conversation) say(format string, args ...any) {
	fmt.Fprintf(t.out, format+"\n", args...)
}

// maxListed bounds what is listed before a question.
const maxListed = 50

// list names changes with their counts.
func (t *conversation) list(all []sandbox.Change) {
	counts := map[sandbox.ChangeKind]int{}
	for _, c := range all {
		counts[c.Kind]++
	}
	t.say("%s: %d created, %d modified, %d deleted", changeCount(len(all)),
		counts[sandbox.Created], counts[sandbox.Modified], counts[sandbox.Deleted])
	for _, c := range all[:min(len(all), maxListed)] {
		t.say("%s", t.coloured(c))
	}
	if more := len(all) - maxListed; more > 0 {
		t.say("  … and %d more", more)
	}
}

func (t *conversation) leftOut(all []sandbox.Unapplied) {
	for _, u := range all[:min(len(all), maxListed)] {
		t.say("left out: %s: %s", visible(u.Path), u.Reason)
	}
	if more := len(all) - maxListed; more > 0 {
		t.say("left out: %d more", more)
		if last := all[len(all)-1]; last.Path == "" {
			t.say("left out: %s", last.Reason)
		}
	}
}

func (t *conversation) coloured(c sandbox.Change) string {
	line := changeLine(c)
	if !isTerminal(t.out) || os.Getenv("NO_COLOR") != "" {
		return line
	}
	colour := map[sandbox.ChangeKind]string{sandbox.Created: "32", sandbox.Modified: "33", sandbox.Deleted: "31"}[c.Kind]
	return "\x1b[" + colour + "m" + line + "\x1b[0m"
}

// maxAnswer bounds a line of the standard input.
const maxAnswer = 64 << 10

// ask reads one line, and not one byte more, which may be another's. Where no
// line comes the answer is empty. A context that ends interrupts it.
func (t *conversation) ask(ctx context.Context, question string) (string, error) {
	if t.ended {
		return "", nil
	}
	fmt.Fprint(t.out, question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() { // ends with the program, if nobody ever answers
		text, err := readLine(t.in)
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		t.say("")
		return "", context.Cause(ctx)
	case l := <-read:
		if !isTerminal(t.in) || l.err != nil {
			t.say("%s", visible(l.text)) // which a terminal has shown
		}
		t.ended = l.err != nil
		if errors.Is(l.err, io.EOF) {
			l.err = nil
		}
		return strings.TrimSpace(l.text), l.err
	}
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
	return "", errors.New("the answer is too long")
}

// page shows what write writes: with $PAGER, or less, where there is a terminal to
// page on, and else as it is.
func (t *conversation) page(ctx context.Context, write func(io.Writer) error) error {
	f, ok := t.out.(*os.File)
	if !ok || !isTerminal(t.out) || !isTerminal(t.in) {
		return write(visibly(t.out))
	}
	pager := os.Getenv("PAGER")
	if pager == "" {
		if _, err := exec.LookPath("less"); err != nil {
			return write(visibly(t.out))
		}
		pager = "less -R"
	}
	if t.relay == nil {
		return pipeTo(ctx, pager, f, write)
	}
	return t.relay.page(func() error { return pipeTo(ctx, pager, f, write) })
}

// pipeTo runs a pager on a terminal, with what write writes.
func pipeTo(ctx context.Context, pager string, f *os.File, write func(io.Writer) error) error {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", pager)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, f, f
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pager %s: %w", pager, err)
	}
	err = write(patch.Terminal(pipe))
	if errors.Is(err, unix.EPIPE) {
		err = nil // enough was seen
	}
	closed, ended := pipe.Close(), cmd.Wait()
	var exit *exec.ExitError
	if errors.As(ended, &exit) && !exit.Exited() {
		ended = nil // by a key, as ^C
	}
	return errors.Join(err, closed, ended)
}

func isTerminal(of any) bool {
	f, ok := of.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}
