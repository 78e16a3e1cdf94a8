package part

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// stores are the images with the files of sandboxes.
type stores struct{ *Parts }

func (s stores) find() ([]string, error) {
	images, err := s.Roots.Images()
	return s.madeIDs(images), err
}

func (s stores) release(_ context.Context, r *Remains) error {
	if r.moved {
		return nil
	}
	all, err := s.Roots.Images()
	errs := []error{err}
	all = slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, s.ImagePrefix(r.names.Made)) })
	if r.Record != nil {
		s.Handed.RetireImages(r.Dir, r.Record.UID, all)
	}
	for _, name := range all {
		errs = append(errs, s.Trash.Discard(s.ImagePath(name)))
	}
	return errors.Join(errs...)
}

// abandonImage drops the unwritten data of a sandbox's image, so that a removal does not wait until
// the kernel has written files that nobody will read. After a failure the kernel writes the files.
func (p *Parts) abandonImage(r record.Record) {
	f, err := record.OpenStore(r.Init)
	if err != nil {
		return // PID 1 has ended
	}
	defer f.Close()
	_ = r.Backend(p.Roots).Abandon(f)
}
