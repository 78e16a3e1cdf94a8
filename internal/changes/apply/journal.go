package apply

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/erase"
)

const (
	journalPrefix = reservedPrefix + "apply-"
	// In a staging directory, items have numbers as names.
	recordFile = "commit"     // the whole and durable record
	draftFile  = "commit.new" // the record while it is written
	doneFile   = "done"       // the record after all its steps are done
	// markFile says that an apply has made the directory. The mark is removed last.
	markFile = "staging"
	// raisedPrefix begins the names that earlier versions gave to deep directories. These versions removed the mark
	// before the deep directories.
	raisedPrefix = "raised-"
)

// ErrBusy says that an apply to the same tree is going on.
var ErrBusy = errors.New("another apply to this tree is going on: wait for it to end")

// recordVersion is raised when older programs would misread a record.
const recordVersion = 2

// A record has the steps of an apply.
type record struct {
	Version int
	// Source is the source in the options.
	Source string
	// Begun is the start of the steps, in nanoseconds: no staged file was changed later.
	Begun int64
	Ops   []op
	// Kin are the remaining hard links of files that lose one hard link by this apply.
	Kin []kin
}

// kin is a remaining hard link of a file, with the inode and the time that an earlier apply
// gave it.
type kin struct {
	Path  string
	Ino   uint64
	MTime int64
}

// A journal is a staging directory. The process that works with it holds its lock.
type journal struct {
	target int // the tree's root
	name   string
	dir    *os.File
	view   bool // as Options.View
}

// beginJournal makes a staging directory in a tree.
func beginJournal(target *os.File, view bool) (*journal, error) {
	for {
		name := journalPrefix + strings.ToLower(rand.Text())
		if err := unix.Mkdirat(int(target.Fd()), name, 0o700); err != nil {
			return nil, &pathError{name, err}
		}
		j, err := lockJournal(target, name, view)
		if err == nil {
			if err := j.mark(); err != nil {
				j.dir.Close()
				return nil, err
			}
			return j, j.removeInherited()
		}
		// Another process has taken the new directory for an abandoned one.
		if !errors.Is(err, ErrBusy) && !missing(err) {
			return nil, err
		}
	}
}

// mark makes the mark of a new staging directory. A user with the right to rename entries of the tree can
// have put another directory in its place. The owner of that directory could replace what is staged.
func (j *journal) mark() error {
	e, err := statFD(int(j.dir.Fd()))
	if err != nil {
		return err
	}
	names, err := newTree(j.dir).names("")
	if err != nil {
		return err
	}
	if len(names) > 0 || e.UID != uint32(os.Geteuid()) || e.Mode&0o022 != 0 {
		return fmt.Errorf("%q %w", j.name, ErrForeign)
	}
	fd, err := unix.Openat(int(j.dir.Fd()), markFile, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &pathError{j.name, err}
	}
	return unix.Close(fd)
}

// checkOwner refuses a directory of another user, and a directory that no apply has made: a user with
// the right to rename entries of the tree can give any directory this name.
func (j *journal) checkOwner() error {
	e, err := statFD(int(j.dir.Fd()))
	if err != nil {
		return err
	}
	names, err := newTree(j.dir).names("")
	if err != nil {
		return err
	}
	made := slices.Contains(names, markFile) || slices.Contains(names, recordFile) || !slices.ContainsFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, raisedPrefix)
	})
	if !made || !isOwnEntry(e) {
		return fmt.Errorf("%q %w", j.name, ErrForeign)
	}
	return nil
}

func isOwnEntry(e entry) bool { return e.UID == uint32(os.Geteuid()) && e.Mode&0o077 == 0 }

// removeInherited removes inherited attributes from a new staging directory: otherwise all files in the
// directory would inherit them, too.
func (j *journal) removeInherited() error {
	fd := int(j.dir.Fd())
	for _, name := range []string{defaultACL, accessACL} {
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return j.abandon(&pathError{j.name, err})
		}
	}
	if e, err := statFD(fd); err != nil {
		return j.abandon(err)
	} else if gid := os.Getegid(); e.GID != uint32(gid) {
		if err := unix.Fchown(fd, -1, gid); err != nil {
			return j.abandon(&pathError{j.name, err})
		}
	}
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return j.abandon(&pathError{j.name, err})
	}
	return nil
}

// abandon gives up before the tree has been changed. The record is removed first: if the
// removal is interrupted, no later apply carries out a record whose staged files are gone.
func (j *journal) abandon(err error) error {
	_ = unix.Unlinkat(int(j.dir.Fd()), recordFile, 0) // mostly there is none
	return errors.Join(err, j.discard())
}

// lockJournal opens and locks a staging directory. The error is ErrBusy if another process
// holds it. [journal.checkOwner] checks the owner of the directory.
func lockJournal(target *os.File, name string, view bool) (*journal, error) {
	fd, err := beneath(int(target.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, &pathError{name, err}
	}
	j := &journal{target: int(target.Fd()), name: name, dir: os.NewFile(uintptr(fd), name), view: view}
	if err := j.lock(); err != nil {
		j.dir.Close()
		return nil, err
	}
	return j, nil
}

func (j *journal) lock() error {
	got, err := descriptor.TryLock(j.dir)
	if err != nil {
		return &pathError{j.name, err}
	}
	if !got {
		if _, err := statAt(int(j.dir.Fd()), doneFile); err == nil {
			return &pathError{j.name, unix.ENOENT} // its holder only has to remove it
		}
		return ErrBusy
	}
	own, err := statFD(int(j.dir.Fd()))
	if err != nil {
		return err
	}
	named, err := statAt(j.target, j.name)
	if err != nil {
		return &pathError{j.name, err}
	}
	if named.identity != own.identity {
		return &pathError{j.name, unix.ENOENT} // another directory has the name now
	}
	return nil
}

// write makes a record durable. The staged files must be durable by then.
func (j *journal) write(r *record) error {
	dir := int(j.dir.Fd())
	fd, err := unix.Openat(dir, draftFile, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("record of the apply: %w", err)
	}
	f := os.NewFile(uintptr(fd), draftFile)
	defer f.Close()
	w := bufio.NewWriterSize(f, 64<<10)
	digest := sha256.New()
	if err := errors.Join(gob.NewEncoder(io.MultiWriter(w, digest)).Encode(r), w.Flush()); err != nil {
		return fmt.Errorf("record of the apply: %w%s", err, wayOut(err))
	}
	e, err := statFD(int(f.Fd()))
	if err != nil {
		return err
	}
	if err := seal(f, append(digest.Sum(nil), sizeOf(e.Size)...)); err != nil {
		return fmt.Errorf("record of the apply: %w%s", err, wayOut(err))
	}
	if err := j.sync(f); err != nil {
		return err
	}
	if err := unix.Renameat(dir, draftFile, dir, recordFile); err != nil {
		return fmt.Errorf("record of the apply: %w", err)
	}
	return j.sync(j.dir)
}

// sync makes the directory, or a file of it, durable.
func (j *journal) sync(f *os.File) error {
	if j.view {
		return nil
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("record of the apply: %w%s", err, wayOut(err))
	}
	return nil
}

// syncAll makes all files of the tree's file system durable.
func (j *journal) syncAll() error {
	if j.view {
		return nil
	}
	if err := unix.Syncfs(int(j.dir.Fd())); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// read returns the record in a file. It returns nil if there is no such file: then the apply
// has not changed the tree yet, or all its steps are done.
func (j *journal) read(name string) (*record, error) {
	fd, err := unix.Openat(int(j.dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &pathError{j.name + "/" + name, err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if e, err := statFD(fd); err != nil || e.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &pathError{j.name + "/" + name, errors.Join(err, errNotRegular)}
	}
	content, err := j.sealed(f)
	if err != nil {
		return nil, fmt.Errorf("record of an apply in %s: %w", j.name, err)
	}
	var r record
	if err := gob.NewDecoder(bufio.NewReader(content)).Decode(&r); err != nil {
		return nil, fmt.Errorf("record of an apply in %s: %w", j.name, err)
	}
	if r.Version < 1 || r.Version > recordVersion {
		return nil, fmt.Errorf("record of an apply in %s was written by another version of the runtime (%d): finish the apply with that version", j.name, r.Version)
	}
	return &r, nil
}

// done notes that all steps are done.
func (j *journal) done() error {
	dir := int(j.dir.Fd())
	if err := unix.Renameat(dir, recordFile, dir, doneFile); err != nil {
		return fmt.Errorf("record of the apply: %w", err)
	}
	return nil
}

// undone removes the record, after the caller has taken back all its steps.
func (j *journal) undone() error {
	if err := unix.Unlinkat(int(j.dir.Fd()), recordFile, 0); err != nil {
		return fmt.Errorf("record of the apply: %w", err)
	}
	return j.sync(j.dir)
}

// clear removes the replaced entries. The done record stays until the sandbox has stored the
// stamps of the apply.
func (j *journal) clear() error {
	if err := errors.Join(j.sync(j.dir), j.empty(doneFile, markFile)); err != nil {
		return fmt.Errorf("remove the replaced entries in %s: %w", j.name, err)
	}
	return nil
}

// discard removes the staging directory with all its files, and unlocks it.
func (j *journal) discard() error {
	defer j.dir.Close()
	err := j.empty(doneFile, markFile) // as long as replaced entries stay, the next apply tells the stamps anew
	for _, name := range []string{doneFile, markFile} {
		if err == nil {
			err = erase.IgnoreMissing(unix.Unlinkat(int(j.dir.Fd()), name, 0))
		}
	}
	if err == nil {
		err = unix.Unlinkat(j.target, j.name, unix.AT_REMOVEDIR)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", j.name, err)
	}
	return nil
}

// empty removes the content of the staging directory, except the spared names.
func (j *journal) empty(spared ...string) error {
	if err := erase.ContentsAsOwner(context.Background(), j.dir, spared...); err != nil {
		return fmt.Errorf("%w%s", err, wayOut(err))
	}
	return nil
}

// journals are the staging directories in a tree.
func journals(target *os.File) ([]string, error) {
	names, err := newTree(target).names("")
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, journalPrefix) }), err
}
