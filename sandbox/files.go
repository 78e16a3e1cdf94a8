package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
)

// Files are the files of a sandbox that is up, as the sandbox's user sees them, with that
// user's rights. A small program inside does the work. It starts when it is first needed,
// and stays for some idle seconds. Links and ".." lead where they lead in the sandbox,
// also if they change meanwhile, and never out of it. Code in the sandbox can slow that
// program down or end it, as any program of its own; then calls return an error.
//
// Names are paths inside. A relative one begins at the Config's Cwd. Errors about files
// are an [*fs.PathError] with the given name, and match [fs.ErrNotExist] and the like. All
// other errors are an [*Error]: the sandbox is paused, was removed, has no room for
// another process.
//
// ctx bounds each call, with all of its streaming.
type Files struct {
	sandbox *Sandbox

	// connecting is held by the one that connects.
	connecting *semaphore.Weighted
	// mu guards the fields below.
	mu     sync.Mutex
	client *files.Client // nil, or one that may have ended
	closed bool
}

// FileInfo describes a file.
type FileInfo struct {
	// Name is the last part of its path.
	Name string
	Size int64
	Mode fs.FileMode
	// ModTime is when its content changed last.
	ModTime time.Time
	// UID and GID are the sandbox's.
	UID, GID uint32
	// Link is where a symbolic link leads.
	Link string
}

// ErrNotRegular says that only of regular files the content can be asked for.
var ErrNotRegular = files.ErrNotRegular

// Files are the sandbox's.
//
// Errors of their methods match ErrUnavailable where the provider has none.
func (s *Sandbox) Files() *Files { return s.files }

// filesIdle is how long the program inside stays when nobody needs it.
const filesIdle = 10 * time.Second

// connect returns the connection there is, or a new one.
func (f *Files) connect(ctx context.Context) (*files.Client, error) {
	filer, err := instanceAbility[Filer](f.sandbox, "files")
	if err != nil {
		return nil, err
	}
	if err := f.connecting.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer f.connecting.Release(1)
	f.mu.Lock()
	there := f.client
	f.mu.Unlock()
	if there != nil && there.Err() == nil {
		return there, nil
	}
	client, err := f.start(ctx, filer)
	if err != nil {
		return nil, err
	}
	if there != nil {
		there.Close()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		client.Close()
		return nil, ErrClosed
	}
	f.client = client
	return client, nil
}

func (f *Files) start(ctx context.Context, filer Filer) (*files.Client, error) {
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer stdout.Close()
	enlarge(stdin)
	enlarge(stdout)
	server, err := filer.StartFiles(ctx, stdin, stdout)
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return files.NewClient(in, out, server, files.Options{Idle: filesIdle, Silent: f.silent}), nil
}

// pipeSize is the room of a pipe for a chunk of a file or of a layer.
const pipeSize = 1 << 20

// enlarge gives a pipe pipeSize bytes of room, if the user may have that much in pipes. More room only saves time.
func enlarge(pipe *os.File) {
	_ = descriptor.Use(pipe, func(fd int) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize)
		return err
	})
}

// silent says why the program inside may not answer.
func (f *Files) silent(ctx context.Context) error {
	info, err := f.sandbox.Info(ctx)
	switch {
	case err != nil:
		return err
	case info.State == StatePaused:
		return ErrPaused
	case info.State == StateStopped:
		return ErrNotRunning
	}
	return nil
}

func (f *Files) close() {
	f.mu.Lock()
	client := f.client
	f.closed = true
	f.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// endUnused ends the program inside if no call uses it. The next call starts another one.
func (f *Files) endUnused() {
	f.mu.Lock()
	client := f.client
	f.mu.Unlock()
	if client != nil {
		client.EndUnused()
	}
}

// absolute is the name for the program inside. It is not cleaned: the meaning of ".."
// depends on links.
func (f *Files) absolute(name string) (string, error) {
	switch {
	case name == "":
		return "", unix.ENOENT
	case strings.IndexByte(name, 0) >= 0:
		return "", unix.EINVAL
	}
	if !path.IsAbs(name) {
		cwd := cmp.Or(f.sandbox.info.Config.Cwd, WorkspacePath)
		name = strings.TrimSuffix(cwd, "/") + "/" + name
	}
	if len(name) >= unix.PathMax {
		return "", unix.ENAMETOOLONG
	}
	return name, nil
}

// callServer does something about a name, and words the errors.
func (f *Files) callServer(ctx context.Context, op, name string, do func(c *files.Client, name string) error) error {
	full, err := f.absolute(name)
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	client, err := f.connect(ctx)
	if err == nil {
		err = do(client, full)
	}
	return f.worded(op, name, err)
}

// worded is the error as the caller gets it.
func (f *Files) worded(op, name string, err error) error {
	var errno syscall.Errno
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return err
	case errors.As(err, &errno) && err == error(errno), errors.Is(err, ErrNotRegular), errors.Is(err, files.ErrEscapes):
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return f.failed(op, name, err)
}

// failed words errors about the sandbox, not about the file.
func (f *Files) failed(op, name string, err error) error {
	switch {
	case errors.Is(err, files.ErrClosed), errors.Is(err, os.ErrClosed):
		err = ErrClosed
	case errors.Is(err, files.ErrEnded), errors.Is(err, files.ErrSilent), errors.Is(err, files.ErrTooMany):
		err = fmt.Errorf("%s %s %w: %w; try again", op, name, ErrUnavailable, err)
	}
	return errorAbout(f.sandbox.info.ID, err)
}

// Stat describes a file. A symbolic link is followed.
func (f *Files) Stat(ctx context.Context, name string) (FileInfo, error) {
	return f.stat(ctx, "stat", name, (*files.Client).Stat)
}

// Lstat is Stat, of a symbolic link itself.
func (f *Files) Lstat(ctx context.Context, name string) (FileInfo, error) {
	return f.stat(ctx, "lstat", name, (*files.Client).Lstat)
}

func (f *Files) stat(ctx context.Context, op, name string, stat func(*files.Client, context.Context, string) (files.Info, error)) (FileInfo, error) {
	var info files.Info
	err := f.callServer(ctx, op, name, func(c *files.Client, full string) (err error) {
		info, err = stat(c, ctx, full)
		info.Name = path.Base(full)
		return err
	})
	if err != nil {
		return FileInfo{}, err
	}
	return FileInfo(info), nil
}

// ReadDir describes the entries of a directory, in no order, as they come: a directory of
// any size takes no memory. The first error is the last item.
func (f *Files) ReadDir(ctx context.Context, name string) iter.Seq2[FileInfo, error] {
	return func(yield func(FileInfo, error) bool) {
		stopped := false
		err := f.callServer(ctx, "readdir", name, func(c *files.Client, full string) error {
			for info, err := range c.List(ctx, full) {
				if err != nil {
					return err
				}
				if stopped = !yield(FileInfo(info), nil); stopped {
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			yield(FileInfo{}, err)
		}
	}
}

// Mkdir makes a directory. The umask, 022, is taken off the mode.
func (f *Files) Mkdir(ctx context.Context, name string, mode fs.FileMode) error {
	return f.callServer(ctx, "mkdir", name, func(c *files.Client, full string) error { return c.Mkdir(ctx, full, mode, false) })
}

// MkdirAll makes a directory and those that lead to it. That it is there is no
// error.
func (f *Files) MkdirAll(ctx context.Context, name string, mode fs.FileMode) error {
	return f.callServer(ctx, "mkdir", name, func(c *files.Client, full string) error { return c.Mkdir(ctx, full, mode, true) })
}

// Rename moves a file or a directory; a file that has the new name is replaced.
func (f *Files) Rename(ctx context.Context, from, to string) error {
	return f.callServer(ctx, "rename", from, func(c *files.Client, full string) error {
		target, err := f.absolute(to)
		if err != nil {
			return err
		}
		return c.Rename(ctx, full, target)
	})
}

// Remove removes a file, a link, or a directory that is empty.
func (f *Files) Remove(ctx context.Context, name string) error {
	return f.callServer(ctx, "remove", name, func(c *files.Client, full string) error { return c.Remove(ctx, full, false) })
}

// RemoveAll removes a file, or a directory with all that is in it. That there is
// none is no error. The sandbox's root is refused.
func (f *Files) RemoveAll(ctx context.Context, name string) error {
	return f.callServer(ctx, "remove", name, func(c *files.Client, full string) error {
		if path.Clean(full) == "/" {
			return unix.EBUSY
		}
		return c.Remove(ctx, full, true)
	})
}

// Symlink makes a symbolic link with this target, which need not exist.
func (f *Files) Symlink(ctx context.Context, target, name string) error {
	return f.callServer(ctx, "symlink", name, func(c *files.Client, full string) error {
		if target == "" || len(target) >= unix.PathMax || strings.IndexByte(target, 0) >= 0 {
			return unix.EINVAL
		}
		return c.Symlink(ctx, target, full)
	})
}

// Chmod changes the permissions of a file. A symbolic link is followed.
func (f *Files) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return f.callServer(ctx, "chmod", name, func(c *files.Client, full string) error { return c.Chmod(ctx, full, mode) })
}
