package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// A decision is the result of a review.
type decision int

const (
	// undecided changes stay in the sandbox.
	undecided decision = iota
	// kept changes stay in the sandbox because the person has said so.
	kept
	// settled changes are applied, saved or discarded: the sandbox can be removed.
	settled
)

// A review asks for a decision about a sandbox's changes.
type review struct {
	talk    *conversation
	changes *sandbox.Changes
	// left are the changes that the host does not have.
	left []sandbox.Change
}

// run asks until there is a decision. A script that gives no answer discards. An
// error leaves the changes undecided.
func (r *review) run(ctx context.Context) (decision, error) {
	if err := r.list(); err != nil {
		return undecided, err
	}
	if len(r.left) == 0 {
		r.talk.say("nothing was changed in %s", strings.Join(r.changes.Trees(), ", "))
		return settled, nil
	}
	for _, note := range r.changes.Notes() {
		r.talk.say("%s", escaped(note))
	}
	r.talk.list(r.left)
	r.talk.dropTyped()
	for {
		answer, err := r.talk.ask(ctx, r.question())
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
		case errors.Is(err, errTerminalClosed):
			return undecided, err
		case err != nil:
			r.talk.say("%s", escaped(err.Error()))
		}
		if r.talk.ended {
			return r.discard()
		}
	}
}

func (r *review) question() string {
	if r.talk.attended {
		return "[r]eview, [a]pply, [s]ave, [k]eep, [d]iscard? "
	}
	return "[r]eview, [a]pply, [s]ave, [d]iscard? [d] "
}

// list reads the changes that the host does not have.
func (r *review) list() error {
	r.left = nil
	for change, err := range r.changes.List(sandbox.ListOptions{}) {
		if err != nil {
			return err
		}
		r.left = append(r.left, change)
	}
	return nil
}

// obey follows one answer.
func (r *review) obey(ctx context.Context, answer string) (decision, error) {
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
		return undecided, r.talk.page(ctx, r.diff)
	case "d", "discard":
		return r.discard()
	case "":
		if r.talk.attended {
			return r.confirmDiscard(ctx)
		}
		return r.discard()
	case "q", "quit":
		if r.talk.attended {
			return kept, nil
		}
		return r.discard()
	case "k", "keep":
		if r.talk.attended {
			return kept, nil
		}
	}
	return undecided, noAnswer(answer)
}

func noAnswer(answer string) error {
	return fmt.Errorf("answer %q is none of these: use a word or its first letter; a PATH... applies these paths (with a space as \"a b\"), s FILE saves to a .tar or .patch", answer)
}

func (r *review) discard() (decision, error) {
	r.talk.say("discarded")
	return settled, nil
}

// confirmDiscard asks once more after the empty answer: it may be a slip.
func (r *review) confirmDiscard(ctx context.Context) (decision, error) {
	answer, err := r.talk.ask(ctx, fmt.Sprintf("discard %s for good? [y/N] ", changeCount(len(r.left))))
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
func (r *review) apply(ctx context.Context, argument string) (decision, error) {
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
	if len(paths) == 0 && len(done.Held) == 0 && (len(done.LeftOut) == 0 || !r.talk.attended) {
		return settled, nil
	}
	return r.remain()
}

// applyWith asks before it overwrites changes of the host, and lists what was applied.
// It returns nil where the answer is no.
func (r *review) applyWith(ctx context.Context, o sandbox.ApplyOptions) (*sandbox.Applied, error) {
	done, err := r.changes.Apply(ctx, o)
	var conflict *sandbox.ConflictError
	if errors.As(err, &conflict) {
		r.talk.say("%s", escaped(err.Error()))
		answer, refused := r.talk.ask(ctx, "overwrite these files of the host? [y/N] ")
		if refused != nil || !yes(answer) {
			return nil, refused
		}
		o.Overwrite = true
		done, err = r.changes.Apply(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	if len(done.Changes) > 0 {
		r.talk.listAs("applied ", done.Changes)
	} else {
		r.talk.say("applied nothing")
	}
	r.talk.leftOut(done.LeftOut)
	return done, nil
}

// applyHeld asks apart about the paths that an apply has held back. If the answer is no,
// it returns the result of that apply.
func (r *review) applyHeld(ctx context.Context, paths []string, before *sandbox.Applied) (*sandbox.Applied, error) {
	r.talk.held(before.Held)
	answer, err := r.talk.ask(ctx, "apply these, too, although they run without a question? [y/N] ")
	if err != nil || !yes(answer) {
		return before, err
	}
	done, err := r.applyWith(ctx, sandbox.ApplyOptions{Paths: paths, AllowAutorun: true})
	if done == nil {
		done = before
	}
	return done, err
}

// diff writes the changes for a reader, with the reasons to look at some of them first.
func (r *review) diff(w io.Writer) error {
	if err := writeMarks(w, r.changes); err != nil {
		return err
	}
	return r.changes.Diff(w)
}

// remain lists the changes that are still only in the sandbox.
func (r *review) remain() (decision, error) {
	if !r.talk.attended {
		return undecided, nil
	}
	if err := r.list(); err != nil {
		return undecided, err
	}
	if len(r.left) == 0 {
		r.talk.say("no other change is left")
		return settled, nil
	}
	r.talk.listAs("only in the sandbox: ", r.left)
	return undecided, nil
}

func yes(answer string) bool { return strings.HasPrefix(strings.ToLower(answer), "y") }

// save saves the changes. They are settled if one file holds all of them. If a patch
// cannot hold all, save asks a person for an archive.
func (r *review) save(ctx context.Context, name string) (decision, error) {
	question := "file (.tar or .patch): "
	for {
		if name == "" {
			var err error
			if name, err = r.talk.ask(ctx, question); err != nil || name == "" {
				return undecided, err
			}
		}
		left, err := saveChanges(ctx, r.talk, r.changes, name)
		if err != nil {
			return undecided, err
		}
		if ctx.Err() != nil {
			return undecided, context.Cause(ctx)
		}
		if len(left) == 0 {
			return settled, nil
		}
		if !r.talk.attended || isArchive(name) {
			return undecided, nil
		}
		question = fmt.Sprintf("%s does not hold these; save all to a .tar, too? file (Enter: no): ", visible(name))
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
