package launcher

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
)

// Images of sandboxes' stores are <data>/stores/HASH-ID@NUMBER.img, HASH being
// that of the state root: whoever knows the id finds them, and those whose sandbox
// is gone are found by their names. The number is another one each time, so that
// an image can outlive a sandbox whose name is used again: who needs one for
// longer gives it a second name (link(2)), and it loses its first one only.
const (
	storesName = "stores"
	blanksName = "blank"
	imageEnd   = ".img"
)

// makeImage makes and mounts an image for a sandbox, and returns its name.
func (l *Launcher) makeImage(id string, limits store.Limits) (name string, f *os.File, err error) {
	stores, err := statedir.OpenData(l.data, storesName)
	if err != nil {
		return "", nil, err
	}
	defer stores.Close()
	blanks, _, err := statedir.OpenBelow(stores, blanksName)
	if err != nil {
		return "", nil, err
	}
	defer blanks.Close()
	name = l.imagePrefix(id) + rand.Text()[:12] + imageEnd
	if err := store.CreateImage(l.imagePath(name), limits, blanks.Name()); err != nil {
		return "", nil, err
	}
	f, err = store.MountImage(l.imagePath(name))
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(l.imagePath(name)))
	}
	return name, f, nil
}

// imagePath is where an image lies, of the name that a record has.
func (l *Launcher) imagePath(name string) string { return filepath.Join(l.data, storesName, name) }

// imagePrefix begins the names of a sandbox's images: "@" is in no id.
func (l *Launcher) imagePrefix(id string) string { return l.cgroupPrefix() + id + "@" }

// images are the names of this state root's images.
func (l *Launcher) images() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(l.data, storesName))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // there can be none
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), l.cgroupPrefix()) && strings.HasSuffix(e.Name(), imageEnd) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// imageOwners are the ids of the sandboxes whose images there are.
func (l *Launcher) imageOwners() ([]string, error) {
	names, err := l.images()
	var ids []string
	for _, name := range names {
		id, _, found := strings.Cut(strings.TrimPrefix(name, l.cgroupPrefix()), "@")
		if found && isName(id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// removeImages puts a sandbox's images into the trash. dir is the sandbox's directory.
func (l *Launcher) removeImages(id, dir string) error {
	all, err := l.images()
	errs := []error{err}
	var names []string
	for _, name := range all {
		if strings.HasPrefix(name, l.imagePrefix(id)) {
			names = append(names, name)
		}
	}
	if r, err := readRecord(dir); err == nil {
		l.retireImages(dir, r.UID, names)
	}
	for _, name := range names {
		errs = append(errs, l.discard(l.imagePath(name)))
	}
	return errors.Join(errs...)
}

// abandonImage spares a removal the writing of files that nobody will read. A failure is
// no error: then the files are written. The files can no longer be used afterwards. So the
// caller notes the removal first.
func (l *Launcher) abandonImage(r record) {
	if r.Image == "" {
		return
	}
	f, err := storeOf(r.Init)
	if err != nil {
		return // it has ended
	}
	defer f.Close()
	_ = store.Abandon(l.imagePath(r.Image), f)
}
