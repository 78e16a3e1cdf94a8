package apply

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/changes/layer"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A run does the steps of a record, or undoes them.
type run struct {
	tree   *tree
	staged *tree
	ops    []op
	// first says that no step was done before.
	first bool
	// begun is a time in nanoseconds: no staged entry was changed later.
	begun int64
	// stays are the paths of steps that are not undone: others have changed the new
	// entries.
	stays []string
	// kept are the paths of the host's entries that could not go back.
	kept []string
	// restored says that all steps were undone.
	restored bool
}

// changedNow is a conflict that shows only when a step is done.
func changedNow(path string) error {
	return &ConflictError{Conflicts: []spec.Unapplied{{Path: path, Reason: "has changed on the host while it was applied"}}}
}

// forward does all steps that have not been done.
func (r *run) forward() error {
	for i := range r.ops {
		o := &r.ops[i]
		if o.Kind == opEmpty && i+1 < len(r.ops) && r.ops[i+1].Path == o.Path && r.isDone(&r.ops[i+1]) {
			continue // the new directory has taken the place already
		}
		if err := r.doStep(o); err != nil {
			return err
		}
	}
	return nil
}

var errAnother = errors.New("another directory has taken its place")

// place opens the directory that a step is in.
func (r *run) place(o *op) (dir int, name string, err error) {
	above, name := layer.Split(o.Path)
	if dir, err = r.tree.dir(above); err != nil || o.Dir == 0 {
		return dir, name, err
	}
	ino, err := r.tree.inode(above)
	if err == nil && ino != o.Dir {
		err = &pathError{above, errAnother}
	}
	return dir, name, err
}

func (r *run) doStep(o *op) error {
	dir, name, err := r.place(o)
	if missing(err) || noDirectory(err) {
		if missing(err) && !o.makesEntry() && o.Kind != opAttributes {
			return nil // gone, with its directory
		}
		return changedNow(o.Path)
	}
	if err != nil {
		return err
	}
	switch o.Kind {
	case opCreate:
		err = r.create(o, dir, name)
	case opReplace:
		err = r.replace(o, dir, name)
	case opDelete:
		err = r.delete(o, dir, name)
	case opEmpty:
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) {
			return changedNow(o.Path)
		}
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
	case opAttributes:
		return r.setAttributes(o, o.New)
	default:
		err = errors.New("the record is of another version of the runtime")
	}
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%q: the file system can't rename without replacing, or exchange files (renameat2(2)): %w", o.Path, err)
	}
	return errorAt(o.Path, err)
}

func (r *run) create(o *op, dir int, name string) error {
	err := unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return changedNow(o.Path)
	case errors.Is(err, unix.ENOENT):
		if _, err := statAt(r.staged.root, o.staged()); err == nil {
			return changedNow(o.Path) // its directory was removed
		} else if !missing(err) {
			return err
		}
		return nil // done before
	}
	return err
}

func (r *run) replace(o *op, dir int, name string) error {
	done, err := r.replaced(o)
	if err != nil {
		return err
	}
	if !done {
		err := unix.Renameat2(r.staged.root, o.staged(), dir, name, unix.RENAME_EXCHANGE)
		if errors.Is(err, unix.ENOENT) {
			return changedNow(o.Path)
		}
		if err != nil {
			return err
		}
	}
	return r.checkTaken(o)
}

// replaced says whether an earlier run has exchanged the entries of a step.
func (r *run) replaced(o *op) (bool, error) {
	if r.first {
		return false, nil
	}
	staged, err := statAt(r.staged.root, o.staged())
	return err == nil && staged.Ino != o.Ino, err
}

func (r *run) delete(o *op, dir int, name string) error {
	err := unix.Renameat2(dir, name, r.staged.root, o.staged(), unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil // gone, by this hand or another's
	case errors.Is(err, unix.EEXIST):
	case err != nil:
		return err
	}
	return r.checkTaken(o)
}

// checkTaken compares the file that a step took out of the tree with the planned one.
func (r *run) checkTaken(o *op) error {
	if o.Any {
		return nil
	}
	was, err := statAt(r.staged.root, o.staged())
	if err != nil {
		return err
	}
	if !was.sameAs(o.Old) {
		return changedNow(o.Path)
	}
	if was.dir() {
		r.staged.forget() // by this name it knows another one
		digest, err := r.staged.digest(o.staged(), func(string, entry) error { return nil })
		if err != nil {
			return err
		}
		if digest != o.Tree {
			return changedNow(o.Path)
		}
	}
	return nil
}
