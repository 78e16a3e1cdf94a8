package apply

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Recover finishes what an apply to the tree that was killed has left, or
// restores the tree if it has changed since, and tells whether there was any.
// An apply of another user is an error: it is that user's to finish.
func Recover(target *os.File) (recovered bool, err error) {
	names, err := journals(target)
	if err != nil {
		return false, fmt.Errorf("recover %s: %w", target.Name(), err)
	}
	for _, name := range names {
		err := recoverOne(target, name)
		for try := 0; errors.Is(err, errBusy) && try < patience; try++ {
			time.Sleep(5 * time.Millisecond)
			err = recoverOne(target, name)
		}
		if missing(err) {
			continue // another process has
		}
		if err != nil {
			return recovered, fmt.Errorf("recover %s: %w", target.Name(), err)
		}
		recovered = true
	}
	return recovered, nil
}

func recoverOne(target *os.File, name string) error {
	e, err := statAt(int(target.Fd()), name)
	if err != nil {
		return &pathError{name, err}
	}
	if !e.dir() || e.mount || e.UID != uint32(os.Geteuid()) || e.Mode&0o077 != 0 {
		return fmt.Errorf("%q is not of an apply of yours: if it is nobody else's, remove it", name)
	}
	j, err := lockJournal(target, name)
	if err != nil {
		return err
	}
	record, err := j.read()
	if err != nil {
		j.dir.Close()
		return err
	}
	if record == nil {
		return j.discard()
	}
	t, staged := newTree(target), newTree(j.dir)
	defer t.forget()
	defer staged.forget()
	restored, err := j.run(t, staged, record.Ops)
	if restored {
		return nil // that the tree has changed is why, and its user's own doing
	}
	if err != nil {
		return err
	}
	return errors.Join(j.sync(), j.discard())
}
