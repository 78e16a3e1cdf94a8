package apply

import (
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// backward undoes all steps that have been done, the last one first. Entries that
// others have changed since the apply put them there stay.
func (r *run) backward() error {
	for i := len(r.ops) - 1; i >= 0; i-- {
		if err := r.undo(&r.ops[i]); err != nil {
			return err
		}
	}
	return nil
}

// patience is how often a step is tried that others are in the way of.
const patience = 100

// isDone tells whether a step has been done, as the staging directory shows it.
func (r *run) isDone(o *op) bool {
	staged, err := statAt(r.staged.root, o.staged())
	switch o.Kind {
	case opAttributes:
		return false // the staging directory does not show it
	case opDelete:
		return err == nil
	}
	return err != nil || staged.Ino != o.Ino && o.Ino != 0
}

func (r *run) undo(o *op) error {
	dir, name, err := r.place(o)
	for try := 0; noDirectory(err) && try < patience; try++ {
		time.Sleep(time.Millisecond)
		r.tree.forget()
		dir, name, err = r.place(o)
	}
	if missing(err) || noDirectory(err) {
		if r.isDone(o) { // the host has moved the directory away, with the new entry in it
			r.stays = append(r.stays, o.Path)
			return r.keep(o)
		}
		return nil
	}
	if err != nil {
		return err
	}
	switch o.Kind {
	case opCreate:
		err = r.takeBack(o, dir, name)
	case opReplace:
		err = r.exchangeBack(o, dir, name)
	case opDelete, opEmpty:
		err = r.putBack(o, dir, name)
	case opAttributes:
		err = r.setAttributes(o, o.Was)
		if _, ok := errors.AsType[*ConflictError](err); ok { // others have changed it since
			r.staysIfThere(o, dir, name)
			return nil
		}
		if errors.Is(err, unix.EPERM) {
			return nil // then the apply could set nothing but the time
		}
	}
	return errorAt(o.Path, err)
}

// staysIfThere notes a directory of the host if others have set its attributes.
func (r *run) staysIfThere(o *op, dir int, name string) {
	if e, err := statAt(dir, name); err == nil && e.dir() && e.Ino == o.Ino {
		r.stays = append(r.stays, o.Path)
	}
}

// takeBack removes a new entry from the tree. An entry of others in that place stays.
func (r *run) takeBack(o *op, dir int, name string) error {
	e, err := statAt(dir, name)
	if errors.Is(err, unix.ENOENT) || err == nil && e.Ino != o.Ino && o.Ino != 0 {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Renameat2(dir, name, r.staged.root, o.staged(), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
		return nil // not done yet: others have made the entry
	}
	if err != nil {
		return err
	}
	same, err := r.asMade(o)
	if err != nil || same {
		return err
	}
	r.stays = append(r.stays, o.Path)
	return unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_NOREPLACE)
}

func (r *run) exchangeBack(o *op, dir int, name string) error {
	staged, err := statAt(r.staged.root, o.staged())
	if errors.Is(err, unix.ENOENT) {
		return nil // an earlier recovery has kept it
	}
	if err != nil {
		return err
	}
	if staged.Ino == o.Ino {
		return nil // not done
	}
	err = unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		// The new one was removed meanwhile; the old one is given back.
		return unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return err
	}
	same, err := r.asMade(o)
	if err != nil {
		return err
	}
	if !same {
		r.stays = append(r.stays, o.Path)
		if err := unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_EXCHANGE); err != nil {
			return err
		}
		return r.keep(o)
	}
	if o.Old.dir() && o.Old.MTime != 0 { // on XFS an exchange changes the time
		old := attributesOf(entry{identity: o.Old})
		return unix.UtimesNanoAt(dir, name, old.times(), unix.AT_SYMLINK_NOFOLLOW)
	}
	return nil
}

// asMade tells whether nobody has changed a new entry since it came into the tree. The
// entry is in the staging directory again.
func (r *run) asMade(o *op) (bool, error) {
	is, err := statAt(r.staged.root, o.staged())
	if err != nil || o.Made == (identity{}) { // a record of version 1 has none
		return true, err
	}
	if !is.dir() || !o.Made.dir() {
		return is.identity == o.Made, nil
	}
	if is.Ino != o.Ino && o.Ino != 0 {
		return false, nil
	}
	same := true
	r.staged.forget() // it still knows another entry by this name
	err = r.staged.walk(o.staged(), func(_ string, e entry) error {
		same = same && e.unchangedSince(r.begun)
		return nil
	})
	return same, err
}

func (r *run) putBack(o *op, dir int, name string) error {
	err := unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		if r.isDone(o) { // others have made something there since
			r.stays = append(r.stays, o.Path)
			return r.keep(o)
		}
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil // not done
	}
	return err
}

// keptPrefix begins the names of replaced or removed entries that could not go back.
const keptPrefix = reservedPrefix + "kept-"

// keep gives an entry of the host that cannot go back a name at the top of the tree. The entry can have changes that
// the sandbox never saw, and the staging directory is removed.
func (r *run) keep(o *op) error {
	if o.Kind != opDelete && o.Kind != opReplace {
		return nil // the staged entry is the sandbox's, or an empty directory
	}
	name := keptPrefix + strings.ToLower(rand.Text())
	err := unix.Renameat2(r.staged.root, o.staged(), r.tree.root, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.ENOENT) { // kept already
		return nil
	}
	if err == nil {
		r.kept = append(r.kept, name)
	}
	return err
}
