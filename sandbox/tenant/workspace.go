package tenant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrOutside says that a path, or a link on its way, leads out of the workspace.
	ErrOutside = errors.New("leads out of the workspace")
	// ErrNotRegular says that the path is neither a file nor a directory: opened on the
	// host, a FIFO or a device could have any effect.
	ErrNotRegular = errors.New("neither a file nor a directory")
)

// A Workspace is a directory of the host that a sandbox has at another path, held open.
// Its methods take the sandbox's paths, with links as they are in the sandbox, and see no
// more of the host than the workspace, also if files are swapped meanwhile. Other file
// systems that are mounted in it are refused, too.
//
// Errors are an [*fs.PathError] with the given path. Methods may be called from several
// goroutines.
type Workspace struct {
	dir          *os.File
	host, inside string
}

// OpenWorkspace holds a directory of the host that a sandbox has at inside, as
// [sandbox.WorkspacePath]. It refuses a symbolic link, the host's root and the kernel's
// file systems. The caller must close it.
func OpenWorkspace(host, inside string) (*Workspace, error) {
	if !path.IsAbs(inside) || path.Clean(inside) == "/" {
		return nil, fmt.Errorf("workspace at %q in the sandbox: not an absolute path below its root", inside)
	}
	dir, err := os.OpenFile(host, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	return newWorkspace(dir, path.Clean(inside))
}

// newWorkspace takes the directory over.
func newWorkspace(dir *os.File, inside string) (*Workspace, error) {
	host, err := hostPath(dir)
	if err == nil {
		err = checkRoot(dir, host)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Workspace{dir: dir, host: host, inside: inside}, nil
}

// checkRoot refuses directories that cannot be a workspace.
func checkRoot(dir *os.File, host string) error {
	var on unix.Statfs_t
	if err := unix.Fstatfs(fd(dir), &on); err != nil {
		return fmt.Errorf("workspace %s: %w", host, err)
	}
	switch {
	case host == "/":
		return errors.New("workspace /: the host's root is none")
	case on.Type == unix.PROC_SUPER_MAGIC, on.Type == unix.SYSFS_MAGIC, on.Type == unix.CGROUP_SUPER_MAGIC,
		on.Type == unix.CGROUP2_SUPER_MAGIC, on.Type == unix.DEVPTS_SUPER_MAGIC, on.Type == unix.SECURITYFS_MAGIC:
		return fmt.Errorf("workspace %s: the kernel's own files are none", host)
	}
	return nil
}

// Close lets go of the directory. It is safe to call twice.
func (w *Workspace) Close() error {
	if err := w.dir.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Host is the directory's path on the host.
func (w *Workspace) Host() string { return w.host }

// Open opens a file or a directory of the workspace by its path in the sandbox, with the
// flags of [os.OpenFile]. Links are followed as they lead in the sandbox, within the
// workspace. It does not wait: a file of another type is refused with ErrNotRegular.
func (w *Workspace) Open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := w.open(name, flag, perm)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f, nil
}

func (w *Workspace) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	mode := uint32(0) // for openat2(2) one without O_CREAT is a mistake
	if flag&os.O_CREATE != 0 {
		mode = uint32(perm.Perm())
	}
	for range maxLinks {
		at, err := w.walk(name)
		if err != nil {
			return nil, err
		}
		n, err := openFD(at.dir(), at.base, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
		at.close()
		switch {
		case err == unix.ELOOP: // it has become a link since
			continue
		case err == unix.ENXIO || err == unix.ENODEV: // nobody at the other end
			return nil, ErrNotRegular
		case err != nil:
			return nil, err
		}
		return checkFile(os.NewFile(uintptr(n), name))
	}
	return nil, unix.ELOOP
}

// checkFile closes a file that is neither a regular file nor a directory.
func checkFile(f *os.File) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd(f), &st)
	if kind := st.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG && kind != unix.S_IFDIR {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// HostPath is the place on the host to which a path of the sandbox leads: below the
// workspace, with links resolved; the last part need not exist. The sandbox may have put
// another file there when the caller opens this path: Open is safe against that.
func (w *Workspace) HostPath(name string) (string, error) {
	at, err := w.walk(name)
	if err != nil {
		return "", &fs.PathError{Op: "translate", Path: name, Err: err}
	}
	defer at.close()
	return filepath.Join(append(append([]string{w.host}, at.names...), at.base)...), nil
}

// SandboxPath is the path in the sandbox of a file of the host. Links are resolved, as the
// host has them; the last part need not exist. A file outside the workspace is ErrOutside;
// no error has a path of the host.
func (w *Workspace) SandboxPath(host string) (string, error) {
	rest, err := w.below(host)
	if err != nil {
		return "", fmt.Errorf("translate a path of the host: %w", err)
	}
	return path.Join(w.inside, rest), nil
}

func (w *Workspace) below(host string) (string, error) {
	if !filepath.IsAbs(host) {
		return "", fmt.Errorf("%w: it is not absolute", ErrOutside)
	}
	n, err := unix.Open(host, unix.O_PATH|unix.O_CLOEXEC, 0)
	base := ""
	if err == unix.ENOENT {
		var dir string
		if dir, base = filepath.Split(host); base == "" || base == "." || base == ".." {
			return "", err
		}
		n, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(n), "")
	defer f.Close()
	at, err := hostPath(f)
	if err != nil {
		return "", unix.ENOENT
	}
	root, err := hostPath(w.dir)
	if err != nil {
		return "", unix.ENOENT
	}
	rest, ok := strings.CutPrefix(at, root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", ErrOutside
	}
	return path.Join(rest, base), nil
}

// Error is an error of the host's side without its paths, to be shown in the sandbox:
// paths of the workspace become the sandbox's, others are left out. [errors.Is] still
// finds the kernel's error and those of package fs.
func (w *Workspace) Error(err error) error {
	if err == nil {
		return nil
	}
	var file *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &file):
		return &fs.PathError{Op: file.Op, Path: w.insidePath(file.Path), Err: bareError(file.Err)}
	case errors.As(err, &link):
		return &os.LinkError{Op: link.Op, Old: w.insidePath(link.Old), New: w.insidePath(link.New), Err: bareError(link.Err)}
	}
	return bareError(err)
}

// insidePath is a path as the sandbox may see it.
func (w *Workspace) insidePath(p string) string {
	for _, root := range []struct{ at, as string }{{w.host, w.inside}, {w.inside, w.inside}} {
		if rest, ok := strings.CutPrefix(filepath.Clean(p), root.at); ok && (rest == "" || rest[0] == '/') {
			return root.as + rest
		}
	}
	return "a file"
}

// bareError is the condition that an error is, without any text of its own.
func bareError(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	for _, known := range []error{ErrOutside, ErrNotRegular, fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, fs.ErrClosed} {
		if errors.Is(err, known) {
			return known
		}
	}
	return errors.New("it failed")
}
