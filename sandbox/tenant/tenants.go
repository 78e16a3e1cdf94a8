package tenant

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/hostpaths"
	"github.com/sandbox-runtime/sandbox-runtime/sandbox"
)

// trashName is the directory of removed sessions. It is no id.
const trashName = ".trash"

// private is the mode of all directories. Their owner is this program's user, as which the
// sandbox's user shows on the host.
const private = 0o700

// Tenants are the directories of users and their sessions, DIR/USER/SESSION. Its
// methods may be called from several goroutines and several programs at once.
type Tenants struct {
	path       string
	dir, trash *os.File
}

// Open opens the directory that holds all of them, and makes it, with its parents,
// where it does not exist. It belongs to this program's user, and nobody else may
// enter. The caller closes it.
func Open(dir string) (_ *Tenants, err error) {
	path, err := hostpaths.Absolute(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, private); err != nil {
		return nil, fmt.Errorf("directory of tenants: %w", err)
	}
	t := &Tenants{path: path}
	if t.dir, err = os.OpenFile(path, unix.O_DIRECTORY, 0); err != nil {
		return nil, fmt.Errorf("directory of tenants: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	if err := checkOwn(t.dir, path); err != nil {
		return nil, err
	}
	if err := makeDir(t.dir, trashName); err != nil {
		return nil, fmt.Errorf("directory of tenants %s: %w", path, err)
	}
	if t.trash, err = openDir(t.dir, trashName); err != nil {
		return nil, fmt.Errorf("directory of tenants %s: %w", path, err)
	}
	var st unix.Stat_t
	if unix.Fstatat(fd(t.dir), ".TRASH", &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil, fmt.Errorf("directory of tenants %s: its file system takes capitals for small letters, and two users for one; choose a directory on another", path)
	}
	return t, nil
}

// Close lets go of the directory. Sessions that are open stay so. It is safe to
// call twice.
func (t *Tenants) Close() error {
	err := t.dir.Close()
	if t.trash != nil {
		err = errors.Join(err, t.trash.Close())
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// checkOwn refuses a directory that others could have put something into.
func checkOwn(dir *os.File, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd(dir), &st); err != nil {
		return fmt.Errorf("directory of tenants %s: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("directory of tenants %s belongs to user %d: let it be this program's, %d", path, st.Uid, os.Geteuid())
	}
	if st.Mode&0o077 != 0 {
		return fmt.Errorf("directory of tenants %s has mode %#o, which lets others in: chmod 700 it", path, st.Mode&0o7777)
	}
	return nil
}

// A Session is the directory of one session, open.
type Session struct {
	// User and ID are its names.
	User, ID string
	*Workspace
}

// Config is the configuration with the session's directory for its workspace.
func (s *Session) Config(c sandbox.Config) sandbox.Config {
	c.Workspace = s.host
	return c
}

// Limit bounds the session's directory, in bytes and in files, directories among them.
// Past that a write there ends with EDQUOT, on XFS with ENOSPC, and Results of sandboxes
// made after it say that the disk is enforced. It is for a new session, whose directory is
// empty, and changes the limits of one that has limits.
//
// It is a quota of the host's file system, and needs root: [sandbox.ErrUnavailable], with
// the reason, if there is none.
func (s *Session) Limit(bytes, files int64) error {
	held, err := descriptor.Duplicate(s.dir) // Close may come meanwhile
	if err != nil {
		return sessionError(s.User, s.ID, err)
	}
	dir := os.NewFile(uintptr(held), s.dir.Name())
	defer dir.Close()
	err = store.LimitDirectory(dir, store.Limits{Bytes: bytes, Files: files})
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("a limit %w: %w", sandbox.ErrUnavailable, err)
	}
	if err != nil {
		return sessionError(s.User, s.ID, err)
	}
	return nil
}

// attempts to find a directory that another process removes and makes at the same time.
const attempts = 10

// Session opens the directory of a session, and makes it if there is none. The
// caller closes it.
//
// Errors: *IDError.
func (t *Tenants) Session(user, session string) (*Session, error) {
	if err := errors.Join(CheckID(user), CheckID(session)); err != nil {
		return nil, err
	}
	for range attempts {
		err := t.make(user, session)
		if err == nil {
			var s *Session
			if s, err = t.Find(user, session); err == nil {
				return s, nil
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, sessionError(user, session, err)
		}
	}
	return nil, sessionError(user, session, errors.New("it is removed all the time"))
}

func sessionError(user, session string, err error) error {
	return fmt.Errorf("session %s of user %s: %w", session, user, err)
}

// make makes a session's directory, and its user's.
func (t *Tenants) make(user, session string) error {
	if err := makeDir(t.dir, user); err != nil {
		return err
	}
	of, err := t.user(user)
	if err != nil {
		return err
	}
	defer of.Close()
	return makeDir(of, session)
}

func makeDir(in *os.File, name string) error {
	err := descriptor.Use(in, func(in int) error { return unix.Mkdirat(in, name, private) })
	if err != nil && err != unix.EEXIST {
		return os.NewSyscallError("mkdir", err)
	}
	return nil
}

// user opens the directory of a user.
func (t *Tenants) user(user string) (*os.File, error) {
	of, err := openDir(t.dir, user)
	if err != nil {
		return nil, err
	}
	if err := checkOwn(of, filepath.Join(t.path, user)); err != nil {
		of.Close()
		return nil, err
	}
	return of, nil
}

// Find is Session of one that there is: others are an error that matches
// [fs.ErrNotExist].
func (t *Tenants) Find(user, session string) (*Session, error) {
	if err := errors.Join(CheckID(user), CheckID(session)); err != nil {
		return nil, err
	}
	of, err := t.user(user)
	if err != nil {
		return nil, sessionError(user, session, err)
	}
	defer of.Close()
	if err := makePrivate(of, session); err != nil {
		return nil, sessionError(user, session, err)
	}
	dir, err := openDir(of, session)
	if err != nil {
		return nil, sessionError(user, session, err)
	}
	w, err := newWorkspace(dir, sandbox.WorkspacePath)
	if err != nil {
		return nil, sessionError(user, session, err)
	}
	return &Session{user, session, w}, nil
}

// makePrivate undoes the sandbox's change of its workspace's mode, so that the directory
// can be opened, and moved.
func makePrivate(in *os.File, name string) error {
	dir, err := openAt(in, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd(dir), &st); err != nil || st.Mode&0o7777 == private {
		return err
	}
	return unix.Chmod(fdPath(fd(dir)), private)
}

// Users are the ids of all users, sorted.
func (t *Tenants) Users() ([]string, error) {
	dir, err := openDir(t.dir, ".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return idNames(dir)
}

// Sessions are the ids of all sessions of a user, sorted; of a user that there is
// not, none.
func (t *Tenants) Sessions(user string) ([]string, error) {
	if err := CheckID(user); err != nil {
		return nil, err
	}
	of, err := t.user(user)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("user %s: %w", user, err)
	}
	defer of.Close()
	return idNames(of)
}

// idNames are the directories in one that have ids for names.
func idNames(dir *os.File) ([]string, error) {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() && CheckID(e.Name()) == nil {
			all = append(all, e.Name())
		}
	}
	slices.Sort(all)
	return all, nil
}

// Remove has a session be gone at once, however much is in it: Sweep frees the
// disk. Close its sandbox before. That there is none is an error that matches
// [fs.ErrNotExist].
func (t *Tenants) Remove(user, session string) error {
	if err := errors.Join(CheckID(user), CheckID(session)); err != nil {
		return err
	}
	of, err := t.user(user)
	if err != nil {
		return sessionError(user, session, err)
	}
	defer of.Close()
	if err := t.discard(of, session); err != nil {
		return sessionError(user, session, err)
	}
	return nil
}

// RemoveUser is Remove of a user, with all sessions.
func (t *Tenants) RemoveUser(user string) error {
	if err := CheckID(user); err != nil {
		return err
	}
	if err := t.discard(t.dir, user); err != nil {
		return fmt.Errorf("user %s: %w", user, err)
	}
	return nil
}

// discard moves a directory out of sight.
func (t *Tenants) discard(in *os.File, name string) error {
	defer runtime.KeepAlive(t) // whose last use this may be
	if err := makePrivate(in, name); err != nil {
		return err
	}
	_, err := move(in, name, t.trash)
	return os.NewSyscallError("rename", err)
}

// patience is how often Sweep goes on after a sandbox has changed the trash, which a sandbox may still have open.
const patience = 16

// Sweep removes from the disk the sessions that any program has removed: the next program
// finishes the work of a killed one. It may take long, and several may be at it at once.
func (t *Tenants) Sweep(ctx context.Context) error {
	dir, err := openDir(t.trash, ".") // Close may come meanwhile
	if err != nil {
		return err
	}
	defer dir.Close()
	for range patience {
		err = erase.ContentsAsOwner(ctx, dir)
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("empty the trash: %w", err)
	}
	return nil
}
