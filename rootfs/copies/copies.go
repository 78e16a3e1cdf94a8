// Package copies keeps copies of small files of the host's /etc, which many sandboxes show.
//
// The copies lie in a directory of the runtime's own. Each sandbox shows
// the directory as the lower layer of a read-only overlay over its own /etc, so that no sandbox has memory
// for files that it does not use, and no two sandboxes share an inode (docs/adr/0016).
//
// A version of the copies is a directory of this form:
//
//	BOOT-KEY/list    the names of the files that sandboxes see, a line each
//	BOOT-KEY/tree    the files
//
// KEY is a sum of all that decides on the files: [keyOf]. A version never changes, and is never removed
// in its boot: a sandbox can show the version. No sandbox outlives the boot. After a loss of power, a file of
// an earlier boot can be empty.
package copies

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/rootfs/stamps"
)

// mostVersions bounds the versions of one boot. Further sandboxes have copies of their own.
const mostVersions = 32

// A version takes at most one part in roomParts of the free room of its file system.
const roomParts = 16

// settleTime is longer than the time in which two changes of a file can get the same time stamp.
const settleTime = 2 * time.Second

// draftName is the name of a version that is not whole. Only the holder of the lock has a draft.
const draftName = "draft"

var (
	errMostVersions = errors.New("too many versions of the copies")
	errLittleRoom   = errors.New("little free room for copies")
	errUnsettled    = errors.New("a file changes")
	errNoTexts      = errors.New("no file to copy")
	errHeld         = errors.New("another process makes copies")
)

// A File of /etc is in the key of a version, with the sum that its package has.
type File struct {
	Name, Sum string
	State     stamps.State
	Link      bool // a symbolic link can lead to the file
}

// settled says whether each change of the file after a time gives the file another state.
func (f File) settled(began time.Time) bool {
	return f.State.Changed().Before(began.Add(-settleTime))
}

// unchanged says whether the file below a directory still has its state.
func (f File) unchanged(dir int) bool {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if f.Link {
		flags = 0
	}
	var st unix.Stat_t
	err := unix.Fstatat(dir, f.Name, &st, flags)
	return err == nil && stamps.StateOf(&st, nil) == f.State
}

// bootID tells boots apart.
var bootID = sync.OnceValues(process.BootID)

// thisProgram tells programs apart. Another version of this program can have other rules.
var thisProgram = sync.OnceValues(func() (stamps.State, error) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/exe", &st)
	return stamps.StateOf(&st, err), err
})

// keyOf is the name of a version: the boot, and the sum of the states of the files and of the program.
func keyOf(files []File) (string, error) {
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	program, err := thisProgram()
	if err != nil {
		return "", err
	}
	all := fmt.Appendf(nil, "1 %v\n", program)
	for _, f := range files {
		all = fmt.Appendf(all, "%q %s %v\n", f.Name, f.Sum, f.State)
	}
	return fmt.Sprintf("%s-%x", boot, sha256.Sum256(all)), nil
}

// A Store is the directory of all versions. Its lock (flock(2)) is for the process that makes a version.
type Store struct{ Dir *os.File }

func (s Store) path(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", s.Dir.Fd(), name)
}

// A Version is the copies of some files in one state.
type Version struct {
	Names []string // of the files; not of those without a copy
	Path  string   // for messages
	Tree  int      // a descriptor of the directory of the files (O_PATH)
}

// A Source has the texts for a new version.
type Source struct {
	Dir   int       // a descriptor of the directory of the files
	Began time.Time // before the caller looked at the first state
	Read  func() (texts map[string]string, err error)
}

// Open opens the version of the files. Without one it makes the version from the source. The caller must close
// the tree.
func (s Store) Open(files []File, from Source) (v Version, err error) {
	key, err := keyOf(files)
	if err != nil {
		return v, err
	}
	v.Path = filepath.Join(s.Dir.Name(), key)
	v.Names, err = s.list(key)
	if errors.Is(err, fs.ErrNotExist) {
		v.Names, err = s.make(key, files, from)
	}
	if err == nil {
		v.Tree, err = descriptor.Open(int(s.Dir.Fd()), key+"/tree", descriptor.Beneath, unix.O_PATH|unix.O_NOFOLLOW)
	}
	return v, err
}

// make makes the version of a key, and returns the names of the files. The texts must be those of the states in
// the key.
func (s Store) make(key string, files []File, from Source) ([]string, error) {
	if slices.ContainsFunc(files, func(f File) bool { return !f.settled(from.Began) }) {
		return nil, errUnsettled
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if names, err := s.list(key); err == nil { // another process has made the version
		return names, nil
	}
	texts, err := from.Read()
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, errNoTexts
	}
	if slices.ContainsFunc(files, func(f File) bool { return !f.unchanged(from.Dir) }) {
		return nil, errUnsettled
	}
	return slices.Collect(maps.Keys(texts)), s.add(key, texts)
}

// list returns the names of the files of a version. The error is fs.ErrNotExist without the version.
func (s Store) list(key string) (names []string, err error) {
	text, err := os.ReadFile(s.path(key + "/list"))
	for line := range strings.Lines(string(text)) {
		names = append(names, strings.TrimSuffix(line, "\n"))
	}
	return names, err
}

// lock gets the lock, and does not wait for it: the process that has the lock can hang.
func (s Store) lock() (unlock func(), err error) {
	got, err := descriptor.TryLock(s.Dir)
	if err == nil && !got {
		err = errHeld
	}
	return func() { descriptor.Unlock(s.Dir) }, err
}

// tidy removes the drafts of killed processes and the versions of earlier boots. It returns an error if the
// store can have no further version with these texts. The caller has the lock.
func (s Store) tidy(texts map[string]string) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.path(""))
	if err != nil {
		return err
	}
	versions := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), boot+"-") {
			versions++
		} else if err := os.RemoveAll(s.path(e.Name())); err != nil {
			return err
		}
	}
	if versions >= mostVersions {
		return errMostVersions
	}
	return s.room(texts)
}

// room returns an error if the copies would take much of the free room.
func (s Store) room(texts map[string]string) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(s.Dir.Fd()), &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	size := 0
	for _, text := range texts {
		size += Size(text)
	}
	inodes := 2 * len(texts) // and directories
	if uint64(size) > fs.Bavail*uint64(fs.Bsize)/roomParts || fs.Files > 0 && uint64(inodes) > fs.Ffree/roomParts {
		return errLittleRoom
	}
	return nil
}

// Size is the room that the copy of a text takes.
func Size(text string) int {
	page := os.Getpagesize()
	return (len(text) + page - 1) / page * page
}

// add makes a version. The caller has the lock, and the store does not have the version.
func (s Store) add(key string, texts map[string]string) (err error) {
	if err := s.tidy(texts); err != nil {
		return err
	}
	draft := s.path(draftName)
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(draft))
		}
	}()
	if err := os.Mkdir(draft, 0o700); err != nil {
		return err
	}
	names := bytes.Buffer{}
	for name, text := range texts {
		if err := writeCopy(filepath.Join(draft, "tree"), name, text); err != nil {
			return err
		}
		names.WriteString(name + "\n")
	}
	if err := os.WriteFile(filepath.Join(draft, "list"), names.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(draft, s.path(key))
}

// writeCopy writes a file, and the directories above, for every user.
func writeCopy(top, name, text string) error {
	at := filepath.Join(top, name)
	for dir := filepath.Dir(at); len(dir) >= len(top); dir = filepath.Dir(dir) {
		err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)) //nolint:gosec // every user of a sandbox sees the files
		if err != nil {
			return err
		}
	}
	return errors.Join(os.WriteFile(at, []byte(text), 0o644), os.Chmod(at, 0o644)) //nolint:gosec // as above
}
