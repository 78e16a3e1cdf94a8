package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/sandbox-runtime/sandbox-runtime/internal/relay"
	"github.com/sandbox-runtime/sandbox-runtime/internal/review"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

func cpCommand() *cli.Command {
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
		Action: cp,
	}
}

// A place is one of the two arguments of cp.
type place struct {
	box  string // empty: on the host
	path string
}

// stream is the path on the host of the standard input or output.
const stream = "-"

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
	if cmd.NArg() != 2 {
		return errors.New("say from where and to where, as in: cp box:/workspace/out ./out")
	}
	from, to := placeOf(cmd.Args().Get(0)), placeOf(cmd.Args().Get(1))
	switch {
	case (from.box == "") == (to.box == ""):
		return errors.New("say one path in a sandbox, as in box:/workspace/out, and one on the host")
	case from.path == "" || to.path == "":
		return errors.New("a path is empty; write a path in a sandbox as in box:/workspace/out")
	}
	ctx, signals := relay.Catch(ctx)
	defer signals.Stop()
	c := &copying{stderr: cmd.Root().ErrWriter}
	err := withSandboxes(ctx, cmd, func(m *sandboxes) error {
		box, err := m.Get(ctx, from.box+to.box)
		if err != nil {
			return err
		}
		c.files = box.Files()
		if from.box != "" {
			return c.out(ctx, from.path, to.path)
		}
		return c.in(ctx, from.path, to.path)
	})
	if err != nil {
		// The sandbox may have chosen names in the error.
		return errors.New(review.Escaped(relay.CauseOf(ctx, err).Error()))
	}
	if c.leftOut > 0 {
		return fmt.Errorf("left out: %d; the rest was copied", c.leftOut)
	}
	return nil
}

// A copying is one run of cp.
type copying struct {
	files   *sandbox.Files
	stderr  io.Writer
	leftOut int
}

// mostNamed is how many files are named that were left out: the sandbox chooses their number.
const mostNamed = 20

// leave leaves out a file, and says why.
func (c *copying) leave(name, why string) {
	if c.leftOut++; c.leftOut > mostNamed {
		return
	}
	fmt.Fprintf(c.stderr, "left out: %s: %s\n", review.Escaped(name), review.Escaped(why))
}

// onlyContent says that the source names no directory to make, but the content of one.
func onlyContent(source string) bool {
	return strings.HasSuffix(source, "/.") || strings.HasSuffix(source, "/..") || slices.Contains([]string{".", "..", "/"}, path.Base(source))
}

// targetOf is the path to copy to. there is the mode of the named target; nil: it does not exist.
func targetOf(source, target string, isDir bool, there *fs.FileMode) (string, error) {
	content := onlyContent(source)
	switch {
	case content && !isDir:
		return "", &fs.PathError{Op: "copy", Path: source, Err: errNoDirectory}
	case there == nil && !isDir && strings.HasSuffix(target, "/"):
		return "", &fs.PathError{Op: "copy to", Path: target, Err: fs.ErrNotExist}
	case there != nil && there.IsDir() && !content:
		return strings.TrimSuffix(target, "/") + "/" + path.Base(source), nil
	case there != nil && !there.IsDir() && isDir:
		return "", &fs.PathError{Op: "copy a directory to", Path: target, Err: errNoDirectory}
	}
	return target, nil
}

var errNoDirectory = errors.New("not a directory")

// specialFile says why a file is left out.
const specialFile = "neither a file, a directory nor a link"

// openRegular opens a file of the host for reading. A pipe that takes the file's place
// must not block.
func openRegular(open func(flags int) (*os.File, error)) (*os.File, fs.FileInfo, error) {
	f, err := open(os.O_RDONLY | nonblock)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: f.Name(), Err: sandbox.ErrNotRegular}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}
