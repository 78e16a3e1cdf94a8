// Package copying copies files between the host and a sandbox, for the command cp.
//
// Neither side may lead the copy out of its target. All that comes out of a sandbox is hostile. The
// source on the host may be a workspace, which the sandbox changes meanwhile. So below the named
// paths each file is reached through an [os.Root], and no link is followed or written through.
package copying

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// stream is the path on the host of the standard input or output.
const stream = "-"

// A Copying is one copy.
type Copying struct {
	Files *sandbox.Files
	// LeaveOut is called for each file that is not copied. The sandbox may have chosen the name.
	LeaveOut func(name, why string)
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
