package sandboxes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/commandline"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/connection"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/copying"
	"github.com/sandbox-runtime/sandbox-runtime/internal/cli/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
)

// Cp makes the command cp.
func Cp() *cli.Command {
	return &cli.Command{
		Name:      "cp",
		Usage:     "copy files between the host and a sandbox",
		ArgsUsage: "NAME:PATH PATH  or  PATH NAME:PATH",
		Description: `Copies a file, or a directory with all that is in it, as the sandbox's user. A relative
path in the sandbox begins at the directory where its commands start. If the target is a
directory, the copy is made in it; after "DIR/." only the content of DIR is copied. "-"
is the standard output or input, for the content of one file.

Permissions are kept, except setuid, setgid and sticky bits. Out of a sandbox a link is
copied only if it stays within the copied directory. Other links, and files that are
neither file, directory nor link, are left out and named, and the exit status is 1.

    sandbox-runtime cp data.csv box:/workspace
    sandbox-runtime cp box:/workspace/out ./results
    sandbox-runtime cp box:/workspace/report.txt - | less
    tar c src | sandbox-runtime exec -i box tar x`,
		Action: commandline.WithHint(2, 2, "say from where and to where, as in: cp box:/workspace/out ./out", cp),
	}
}

// A place is one of the two arguments of cp.
type place struct {
	box  string // empty: on the host
	path string
}

// placeOf reads an argument. A path on the host that has a colon needs a "/" before the
// colon, as with docker cp.
func placeOf(arg string) place {
	box, at, ok := strings.Cut(arg, ":")
	if !ok || box == "" || strings.Contains(box, "/") {
		return place{path: arg}
	}
	return place{box, at}
}

func cp(ctx context.Context, cmd *cli.Command) error {
	from, to := placeOf(cmd.Args().Get(0)), placeOf(cmd.Args().Get(1))
	switch {
	case (from.box == "") == (to.box == ""):
		return errors.New("say one path in a sandbox, as in box:/workspace/out, and one on the host")
	case from.path == "" || to.path == "":
		return errors.New("a path is empty; write a path in a sandbox as in box:/workspace/out")
	}
	ctx, signals := connection.Catch(ctx, cmd)
	defer signals.Stop()
	left := &leftOut{stderr: cmd.Root().ErrWriter}
	err := connection.WithSandboxes(ctx, cmd, func(m *connection.Sandboxes) error {
		box, err := m.Get(ctx, from.box+to.box)
		if err != nil {
			return err
		}
		c := &copying.Copying{Files: box.Files(), LeaveOut: left.add}
		if from.box != "" {
			return c.Out(ctx, from.path, to.path)
		}
		return c.In(ctx, from.path, to.path)
	})
	if err != nil {
		// The sandbox may have chosen names in the error.
		return errors.New(streams.Escaped(relay.CauseOf(ctx, err).Error()))
	}
	if left.count > 0 {
		return fmt.Errorf("left out: %d; the rest was copied", left.count)
	}
	return nil
}

// leftOut are the files that a copy leaves out.
type leftOut struct {
	stderr io.Writer
	count  int
}

// mostNamed is how many files are named that were left out: the sandbox chooses their number.
const mostNamed = 20

func (l *leftOut) add(name, why string) {
	if l.count++; l.count > mostNamed {
		return
	}
	fmt.Fprintf(l.stderr, "left out: %s: %s\n", onOneLine(name), onOneLine(why))
}

// onOneLine shows a text that the sandbox may have chosen, which must not look like two messages.
func onOneLine(text string) string {
	return strings.ReplaceAll(streams.Escaped(text), "\n", `\n`)
}
