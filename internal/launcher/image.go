package launcher

import (
	"crypto/rand"
	"errors"
	"os"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/store"
)

// makeImage makes and mounts an image for a sandbox, and returns its name.
func (l *Launcher) makeImage(id string, limits store.Limits) (name string, f *os.File, err error) {
	stores, err := statedir.OpenData(l.Data, record.StoresName)
	if err != nil {
		return "", nil, err
	}
	defer stores.Close()
	blanks, _, err := statedir.OpenBelow(stores, record.BlanksName)
	if err != nil {
		return "", nil, err
	}
	defer blanks.Close()
	name = l.ImagePrefix(id) + rand.Text()[:12] + record.ImageEnd
	if err := store.CreateImage(l.ImagePath(name), limits, blanks.Name()); err != nil {
		return "", nil, err
	}
	f, err = store.MountImage(l.ImagePath(name))
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(l.ImagePath(name)))
	}
	return name, f, nil
}

// removeImages puts a sandbox's images into the trash. dir is the sandbox's directory.
func (l *Launcher) removeImages(id, dir string) error {
	own, _, err := l.NamesOf(id)
	if err != nil {
		return err
	}
	all, err := l.Images()
	errs := []error{err}
	var names []string
	for _, name := range all {
		if strings.HasPrefix(name, l.ImagePrefix(own.Made)) {
			names = append(names, name)
		}
	}
	if r, err := record.Read(dir); err == nil {
		l.handed.retireImages(dir, r.UID, names)
	}
	for _, name := range names {
		errs = append(errs, l.trash.Discard(l.ImagePath(name)))
	}
	return errors.Join(errs...)
}

// abandonImage spares a removal the writing of files that nobody will read. A failure is
// no error: then the files are written. The files can no longer be used afterwards. So the
// caller notes the removal first.
func (l *Launcher) abandonImage(r record.Record) {
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return // it has ended
	}
	defer f.Close()
	_ = r.Backend(l.Roots).Abandon(f)
}
