package part

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
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

// makeStore makes the file system for the sandbox's writes.
func (m *Making) makeStore(context.Context) (err error) {
	if m.plan.Store, m.plan.StoreMapped, err = m.openStore(); err != nil {
		return err
	}
	m.atEnd(m.plan.Store.Close)
	return nil
}

// openStore makes the file system for the sandbox's writes: a detached mount, which the caller
// must close. mapped says that the mount shows the ids as processes inside see them. If the
// request names no storage and the disk cannot have the file system, it is in memory.
func (m *Making) openStore() (f *os.File, mapped bool, err error) {
	if m.Request.Config.Storage == spec.StorageDisk {
		m.Record.Image, f, err = m.parts.makeImage(m.ID, storeLimits(m.Request.Config))
		if err == nil {
			return f, true, nil
		}
		if m.Asked.Storage != "" || !imageless(err) {
			return nil, false, refusedImage(err)
		}
		c, refused := Completed(m.Asked, spec.StorageMemory)
		if refused != nil {
			return nil, false, fmt.Errorf("%w; and on disk: %w", fault.Refusal(refused), err)
		}
		m.Request.Config, m.Record.Config = c, c
		m.Record.Notes = append(m.Record.Notes, fmt.Sprintf("its writes are kept in %s of memory, not on disk: %v", c.Limits.Disk, err))
	}
	f, err = store.Memory(storeLimits(m.Request.Config))
	return f, false, err
}

func storeLimits(c spec.Config) store.Limits {
	return store.Limits{Bytes: int64(c.Limits.Disk), Files: c.Limits.Files}
}

// imageless says that the host does not support images, or none of this size. This is no fault
// of the host.
func imageless(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOSPC) || errors.As(err, new(*store.LimitsError))
}

// refusedImage is the error for a request that names storage on disk.
func refusedImage(err error) error {
	var limits *store.LimitsError
	switch {
	case errors.As(err, &limits):
		return fault.Refusal(&spec.FieldError{Field: "limits.disk", Problem: err.Error()})
	case errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("storage on disk %w: %w", fault.ErrUnavailable, err)
	}
	return fmt.Errorf("store on disk: %w", err)
}

// makeImage makes and mounts an image for a sandbox, and returns its name.
func (p *Parts) makeImage(id string, limits store.Limits) (name string, f *os.File, err error) {
	stores, err := statedir.OpenData(p.Data, record.StoresName)
	if err != nil {
		return "", nil, err
	}
	defer stores.Close()
	blanks, _, err := statedir.OpenBelow(stores, record.BlanksName)
	if err != nil {
		return "", nil, err
	}
	defer blanks.Close()
	name = p.ImagePrefix(id) + rand.Text()[:12] + record.ImageEnd
	if err := store.CreateImage(p.ImagePath(name), limits, blanks.Name()); err != nil {
		return "", nil, err
	}
	f, err = store.MountImage(p.ImagePath(name))
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(p.ImagePath(name)))
	}
	return name, f, nil
}

// noteHeldTop adds a note to a new sandbox if the launcher cannot reach the open file of its
// PID 1. Errors of the host's disk can be noticed late then.
func (m *Making) noteHeldTop() error {
	if !m.Record.Backend(m.parts.Roots).Durable() {
		return nil
	}
	top, err := record.OpenStore(m.Record.Init)
	if err != nil {
		return err
	}
	defer top.Close()
	held, err := record.OpenTop(m.Record.Init, top)
	if err != nil {
		m.Record.Notes = append(m.Record.Notes, fmt.Sprintf(
			"errors of the host's disk may be noticed late: %v; give the launcher CAP_SYS_PTRACE", err))
		return nil
	}
	return held.Close()
}
