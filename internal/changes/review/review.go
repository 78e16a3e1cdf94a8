package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A Decision is the result of a review.
type Decision int

const (
	// undecided changes stay in the sandbox.
	undecided Decision = iota
	// kept changes stay in the sandbox because the person has said so.
	kept
	// Settled changes are applied, saved or discarded: the sandbox can be removed.
	Settled
)

// A Review asks for a decision about a sandbox's changes.
type Review struct {
	Talk    *Conversation
	Changes *sandbox.Changes
	// left are the changes that the host does not have.
	left []sandbox.Change
}

// Run asks until there is a decision. A script that gives no answer discards. An
// error leaves the changes undecided.
func (r *Review) Run(ctx context.Context) (Decision, error) {
	if err := r.list(); err != nil {
		return undecided, err
	}
	if len(r.left) == 0 {
		r.Talk.Say("nothing was changed in %s", strings.Join(r.Changes.Trees(), ", "))
		return Settled, nil
	}
	for _, note := range r.Changes.Notes() {
		r.Talk.Say("%s", streams.Escaped(note))
	}
	r.Talk.list("", r.left)
	r.Talk.dropTyped()
	for {
		answer, err := r.Talk.Ask(ctx, r.question())
		if ctx.Err() != nil {
			return undecided, context.Cause(ctx)
		}
		if err != nil {
			return undecided, err
		}
		v, err := r.obey(ctx, answer)
		switch {
		case v != undecided:
			return v, err
		case ctx.Err() != nil:
			return undecided, context.Cause(ctx)
		case errors.Is(err, ErrTerminalClosed):
			return undecided, err
		case err != nil:
			r.Talk.Say("%s", streams.Escaped(err.Error()))
		}
		if r.Talk.ended {
			return r.discard()
		}
	}
}

func (r *Review) question() string {
	if r.Talk.Attended {
		return "[r]eview, [a]pply, [s]ave, [k]eep, [d]iscard? "
	}
	return "[r]eview, [a]pply, [s]ave, [d]iscard? [d] "
}

// list reads the changes that the host does not have.
func (r *Review) list() error {
	r.left = nil
	for change, err := range r.Changes.List(sandbox.ListOptions{}) {
		if err != nil {
			return err
		}
		r.left = append(r.left, change)
	}
	return nil
}

// obey follows one answer.
func (r *Review) obey(ctx context.Context, answer string) (Decision, error) {
	word, argument, _ := strings.Cut(answer, " ")
	argument = strings.TrimSpace(argument)
	word = strings.ToLower(word)
	switch word {
	case "a", "apply":
		return r.apply(ctx, argument)
	case "s", "save":
		return r.save(ctx, argument)
	}
	if argument != "" { // "d PATH" must not discard all
		return undecided, noAnswer(answer)
	}
	switch word {
	case "r", "review":
		return undecided, r.Talk.page(ctx, r.diff)
	case "d", "discard":
		return r.discard()
	case "":
		if r.Talk.Attended {
			return r.confirmDiscard(ctx)
		}
		return r.discard()
	case "q", "quit":
		if r.Talk.Attended {
			return kept, nil
		}
		return r.discard()
	case "k", "keep":
		if r.Talk.Attended {
			return kept, nil
		}
	}
	return undecided, noAnswer(answer)
}

func noAnswer(answer string) error {
	return fmt.Errorf("answer %q is none of these: use a word or its first letter; a PATH... applies these paths (with a space as \"a b\"), s FILE saves to a .tar or .patch", answer)
}

func (r *Review) discard() (Decision, error) {
	r.Talk.Say("discarded")
	return Settled, nil
}

// confirmDiscard asks once more after the empty answer: it may be a slip.
func (r *Review) confirmDiscard(ctx context.Context) (Decision, error) {
	answer, err := r.Talk.Ask(ctx, fmt.Sprintf("discard %s for good? [y/N] ", ChangeCount(len(r.left))))
	if err != nil {
		return undecided, err
	}
	switch strings.ToLower(answer) {
	case "y", "yes", "d", "discard":
		return r.discard()
	}
	return undecided, nil
}

// apply applies changes. They are settled if none is left to ask about.
func (r *Review) apply(ctx context.Context, argument string) (Decision, error) {
	paths, err := pathsIn(argument)
	if err != nil {
		return undecided, err
	}
	done, err := r.applyWith(ctx, sandbox.ApplyOptions{Paths: paths})
	if err == nil && done != nil && len(done.Held) > 0 {
		done, err = r.applyHeld(ctx, paths, done)
	}
	if err != nil || done == nil {
		return undecided, err
	}
	if ctx.Err() != nil {
		return undecided, context.Cause(ctx)
	}
	if len(paths) == 0 && len(done.Held) == 0 && (len(done.LeftOut) == 0 || !r.Talk.Attended) {
		return Settled, nil
	}
	return r.remain()
}

// applyWith asks before it overwrites changes of the host, and lists the applied changes.
// It returns nil if the answer is no.
func (r *Review) applyWith(ctx context.Context, o sandbox.ApplyOptions) (*sandbox.Applied, error) {
	done, err := r.Changes.Apply(ctx, o)
	for {
		conflict, ok := errors.AsType[*sandbox.ConflictError](err)
		if !ok {
			break
		}
		isNew := func(c sandbox.Unapplied) bool { return !slices.Contains(o.OverwriteOnly, c.Path) }
		if !slices.ContainsFunc(conflict.Conflicts, isNew) { // the host goes on changing the files
			break
		}
		r.Talk.Say("%s", streams.Escaped(err.Error()))
		answer, refused := r.Talk.Ask(ctx, "overwrite these files of the host? [y/N] ")
		if refused != nil || !Yes(answer) {
			return nil, refused
		}
		for _, c := range conflict.Conflicts {
			o.OverwriteOnly = append(o.OverwriteOnly, c.Path)
		}
		done, err = r.Changes.Apply(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	if len(done.Changes) > 0 {
		r.Talk.list("applied ", applicable(done.Changes))
	} else {
		r.Talk.Say("applied nothing")
	}
	r.Talk.LeftOut(done.LeftOut)
	return done, nil
}

// applyHeld asks apart about the paths that an apply has held back. If the answer is no,
// it returns the result of that apply.
func (r *Review) applyHeld(ctx context.Context, paths []string, before *sandbox.Applied) (*sandbox.Applied, error) {
	r.Talk.Held(before.Held)
	answer, err := r.Talk.Ask(ctx, "apply these, too, although they run without a question? [y/N] ")
	if err != nil || !Yes(answer) {
		return before, err
	}
	done, err := r.applyWith(ctx, sandbox.ApplyOptions{Paths: paths, AllowAutorun: true})
	if done == nil {
		done = before
	}
	return done, err
}

// diff writes the changes for a reader, with the reasons to look at some of them first.
func (r *Review) diff(w io.Writer) error {
	if err := WriteMarks(w, r.Changes); err != nil {
		return err
	}
	return r.Changes.Diff(w)
}

// remain lists the changes that are still only in the sandbox.
func (r *Review) remain() (Decision, error) {
	if !r.Talk.Attended {
		return undecided, nil
	}
	if err := r.list(); err != nil {
		return undecided, err
	}
	if len(r.left) == 0 {
		r.Talk.Say("no other change is left")
		return Settled, nil
	}
	r.Talk.list("only in the sandbox: ", r.left)
	return undecided, nil
}

// Yes says that an answer begins with a "y".
func Yes(answer string) bool { return strings.HasPrefix(strings.ToLower(answer), "y") }

// save saves the changes. They are settled if one file holds all of them. If a patch
// cannot hold all, save asks a person for an archive.
func (r *Review) save(ctx context.Context, name string) (Decision, error) {
	question := "file (.tar or .patch): "
	for {
		if name == "" {
			var err error
			if name, err = r.Talk.Ask(ctx, question); err != nil || name == "" {
				return undecided, err
			}
		}
		left, err := Save(ctx, r.Talk, r.Changes, name)
		if err != nil {
			return undecided, err
		}
		if ctx.Err() != nil {
			return undecided, context.Cause(ctx)
		}
		if len(left) == 0 {
			return Settled, nil
		}
		if !r.Talk.Attended || IsArchive(name) {
			return undecided, nil
		}
		question = fmt.Sprintf("%s does not hold these; save all to a .tar, too? file (Enter: no): ", streams.Visible(name))
		name = ""
	}
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
			return nil, fmt.Errorf(`%s: close the quotation marks, as in "a b"`, streams.Visible(answer))
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, err
		}
		paths, answer = append(paths, word), answer[len(quoted):]
	}
	return paths, nil
}
