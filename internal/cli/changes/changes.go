package changes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/review"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// List makes the command changes.
func List() *cli.Command {
	return &cli.Command{
		Name:      "changes",
		Usage:     "list the changes of a sandbox in its overlays",
		ArgsUsage: "NAME [PATH...]",
		Description: `Each line has the kind of the change, the size of a file, and the path. A path that
the host runs without a question, or that has unusual rights, has a reason after "!".
A PATH chooses the changes at PATH and below. With --json each line is one change in JSON,
or a message as {"note": "..."}.

    sandbox-runtime up --overlay . box
    sandbox-runtime exec box make
    sandbox-runtime changes box`,
		Flags: []cli.Flag{
			commandline.JSONFlag("print one change in JSON per line"),
			&cli.BoolFlag{Name: "names", Usage: "print names only, which is faster"},
		},
		Action: withChanges(listChosen),
	}
}

// Diff makes the command diff.
func Diff() *cli.Command {
	return &cli.Command{
		Name:      "diff",
		Usage:     "show the changes of a sandbox in its overlays, as a unified diff",
		ArgsUsage: "NAME",
		Description: `"git apply" takes the diff in the overlaid directory, and "patch -p1" takes a diff
of text files. The diff begins with comments that name the paths that run without a
question, or have unusual rights. The standard error lists what the diff does not
hold. On a terminal a binary file is one line, the diff is coloured, and control
characters in it are made visible.

    sandbox-runtime diff box | git apply`,
		Action: withChanges(func(_ context.Context, cmd *cli.Command, c *sandbox.Changes) error {
			if cmd.NArg() != 1 {
				return errors.New("diff takes the name of one sandbox and no paths, as in: diff box")
			}
			out := cmd.Root().Writer
			if err := review.WriteMarks(review.Visibly(out), c); err != nil {
				return err
			}
			leftOut, err := c.SavePatch(review.Visibly(out), sandbox.PatchOptions{Short: review.IsTerminal(out)})
			if err != nil {
				return err
			}
			(&review.Conversation{Out: cmd.Root().ErrWriter}).LeftOut(leftOut)
			return nil
		}),
	}
}

// Apply makes the command apply.
func Apply() *cli.Command {
	return &cli.Command{
		Name:      "apply",
		Usage:     "write the changes of a sandbox in its overlays to the host",
		ArgsUsage: "NAME [PATH...]",
		Description: `Writes all changes, or the changes of each PATH and of the files below PATH, with your own
rights. If the host has changed one of these files meanwhile, nothing is written. A PATH is
absolute. If only one directory is overlaid, a PATH can be relative to this directory.

Files that run without a question, such as git hooks and shell start files, are held back
and listed. All other changes are applied, and the exit status is 1.

    sandbox-runtime apply --dry-run box
    sandbox-runtime apply --yes box src/main.go`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the steps, and do nothing"},
			&cli.BoolFlag{Name: "overwrite", Usage: "write also files that the host has changed meanwhile"},
			&cli.BoolFlag{Name: "allow-autorun", Usage: "apply also files that run without a question, and the rights of --setuid"},
			&cli.BoolFlag{Name: "setuid", Usage: "carry over setuid and setgid bits and file capabilities"},
			&cli.BoolFlag{Name: "devices", Usage: "carry over device nodes"},
		},
		Action: withChanges(applyChanges),
	}
}

// applyGarbage is how much garbage an apply collects, in percent of the memory in use.
// Its lists are long-lived, so the default doubles their size and saves no time.
const applyGarbage = 20

func applyChanges(ctx context.Context, cmd *cli.Command, c *sandbox.Changes) error {
	defer debug.SetGCPercent(debug.SetGCPercent(applyGarbage))
	o := sandbox.ApplyOptions{
		Paths: cmd.Args().Tail(), DryRun: true, Overwrite: cmd.Bool("overwrite"),
		Setuid: cmd.Bool("setuid"), Devices: cmd.Bool("devices"), AllowAutorun: cmd.Bool("allow-autorun"),
	}
	talk := &review.Conversation{In: os.Stdin, Out: cmd.Root().ErrWriter}
	if !cmd.Bool("yes") || cmd.Bool("dry-run") {
		planned, err := c.Apply(ctx, o)
		if err != nil {
			return overwritable(err)
		}
		talk.Plan(planned)
		if cmd.Bool("dry-run") {
			return nil
		}
		count := len(planned.Changes)
		if count == 0 {
			return review.HeldBack(planned.Held)
		}
		answer, err := talk.Ask(ctx, fmt.Sprintf("apply %s to the host? [y/N] ", review.ChangeCount(count)))
		if err != nil {
			return err
		}
		if !review.Yes(answer) {
			return errors.New("nothing was applied (--yes applies without asking)")
		}
		o.Listed = planned.Changes
	}
	o.DryRun = false
	done, err := c.Apply(ctx, o)
	if err != nil {
		return overwritable(err)
	}
	if cmd.Bool("yes") {
		talk.Plan(done)
	}
	if len(done.Changes) > 0 {
		talk.Say("applied %s", review.ChangeCount(len(done.Changes)))
	}
	return review.HeldBack(done.Held)
}

// overwritable adds the way out to an error about conflicts.
func overwritable(err error) error {
	if _, ok := errors.AsType[*sandbox.ConflictError](err); ok {
		return fmt.Errorf("%w\n(--overwrite overwrites them)", err)
	}
	return err
}

// withChanges is an action on the changes of the sandbox that the first argument names.
func withChanges(do func(context.Context, *cli.Command, *sandbox.Changes) error) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		name := cmd.Args().First()
		if name == "" {
			return fmt.Errorf("say the name of a sandbox, as in: %s box", cmd.Name)
		}
		ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		defer stop()
		return connection.WithSandbox(ctx, cmd, func(box *sandbox.Sandbox) (err error) {
			c, err := box.Changes(ctx)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			if len(c.Trees()) == 0 {
				return fmt.Errorf("sandbox %s has no overlay: make it with --overlay DIR", name)
			}
			for _, note := range c.Notes() {
				if err := tellNote(cmd, streams.Escaped(note)); err != nil {
					return err
				}
			}
			return do(ctx, cmd, c)
		})
	}
}

// tellNote prints a message beside the changes: on stderr, or with --json among them.
func tellNote(cmd *cli.Command, note string) error {
	if cmd.Bool("json") {
		return json.NewEncoder(cmd.Root().Writer).Encode(map[string]string{"note": note})
	}
	_, err := fmt.Fprintln(cmd.Root().ErrWriter, note)
	return err
}

// listChosen lists the changes at the paths of the command, and says at which nothing has changed. A
// path that is neither on the host nor a change is an error: the user may have misspelt it.
func listChosen(_ context.Context, cmd *cli.Command, c *sandbox.Changes) error {
	paths := cmd.Args().Tail()
	n, err := listChanges(cmd.Root().Writer, c, cmd.Bool("json"), sandbox.ListOptions{Names: cmd.Bool("names"), Paths: paths})
	if err != nil || len(paths) == 0 || n > 0 && len(paths) == 1 {
		return err
	}
	var missing []error
	for _, path := range paths {
		if n > 0 && hasChanges(c, path) {
			continue
		}
		onHost := path
		if !filepath.IsAbs(path) {
			onHost = filepath.Join(c.Trees()[0], path) // List has refused it with several
		}
		if _, err := os.Lstat(onHost); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, fmt.Errorf("%q does not exist, and nothing has changed at it", path))
			continue
		}
		if err := tellNote(cmd, fmt.Sprintf("nothing has changed at %q", path)); err != nil {
			return err
		}
	}
	return errors.Join(missing...)
}

// hasChanges says that there is a change at a path or below it.
func hasChanges(c *sandbox.Changes, path string) bool {
	for _, err := range c.List(sandbox.ListOptions{Names: true, Paths: []string{path}}) {
		return err == nil
	}
	return false
}

// listChanges returns how many changes it has listed.
func listChanges(w io.Writer, c *sandbox.Changes, inJSON bool, o sandbox.ListOptions) (n int, err error) {
	out := json.NewEncoder(w)
	for change, err := range c.List(o) {
		if err != nil {
			return n, err
		}
		if inJSON {
			err = out.Encode(change)
		} else {
			_, err = fmt.Fprintln(w, review.ChangeLine(change))
		}
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// Save makes the command save.
func Save() *cli.Command {
	return &cli.Command{
		Name:      "save",
		Usage:     "write the changes of a sandbox in its overlays to a file",
		ArgsUsage: "NAME FILE",
		Description: `FILE ends in .tar, for an archive in the form of an OCI layer, or in .patch, for
a diff that "git apply" takes. The standard error lists the paths that FILE does not
hold. FILE must not exist yet.`,
		Action: withChanges(func(ctx context.Context, cmd *cli.Command, c *sandbox.Changes) error {
			if cmd.NArg() != 2 {
				return errors.New("say the sandbox and one file, as in: save box changes.tar")
			}
			name, talk := cmd.Args().Get(1), &review.Conversation{Out: cmd.Root().ErrWriter}
			leftOut, err := review.Save(ctx, talk, c, name)
			if err == nil && len(leftOut) > 0 && !review.IsArchive(name) {
				talk.Say("a file that ends in .tar holds all of these but sockets and devices")
			}
			return err
		}),
	}
}
