package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// grants are the rights that a step has given to a user. A step that fails takes them back.
type grants []string

// addLocked gives the user a right: to one of the "layers" or "images".
func (g *grants) addLocked(u User, kind string, d Digest) error {
	path := u.path(kind, d.hex())
	most := u.store.limits.Layers
	if kind == "images" {
		most = u.store.limits.Images
	}
	if err := checkRoom(path, most); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return explain(err)
	}
	*g = append(*g, path)
	return errors.Join(f.Close(), syncDir(filepath.Dir(path)))
}

// undoLocked takes the rights back, and removes the content that no user has a right to now.
func (g *grants) undoLocked(s *Store) error {
	var errs []error
	for _, path := range *g {
		errs = append(errs, os.Remove(path))
	}
	var r rest
	errs = append(errs, s.dropOrphansLocked(&r), r.erase())
	return errors.Join(errs...)
}

// checkRoom refuses one more file in a directory that has many. A step of one user takes longer if another
// user has more files.
func checkRoom(path string, most int) error {
	if is, err := exists(path); is || err != nil {
		return err
	}
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) >= most {
		err = fmt.Errorf("the user has %d %s already; remove images that are not needed", len(entries), filepath.Base(dir))
	}
	return err
}
