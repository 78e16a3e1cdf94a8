package launcher

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// storageOf returns the place of a sandbox's writes. Without a requested place it is memory for a
// tied sandbox, and the disk for a sandbox that outlives its maker.
func storageOf(r protocol.Create) spec.Storage {
	switch {
	case r.Config.Storage != "":
		return r.Config.Storage
	case r.Tied, r.Config.PID == spec.PIDHost:
		return spec.StorageMemory
	}
	return spec.StorageDisk
}

// completed returns a configuration with all defaults filled in.
func completed(c spec.Config, storage spec.Storage) (spec.Config, error) {
	asked := c.Limits.Disk
	c.Storage = storage
	c, err := c.Complete()
	if err == nil && storage != spec.StorageDisk && asked > c.Limits.Memory {
		err = &spec.FieldError{Field: "limits.disk", Problem: fmt.Sprintf(
			"%s in memory is more than the %s of memory that the sandbox has; raise that with --memory, or keep the files on disk, with --storage disk",
			asked, c.Limits.Memory)}
	}
	if err == nil {
		err = errors.Join(checkOpenFiles(c), networks.Check(c))
	}
	if err == nil && c.User.Name != "" && c.Image == "" { // the launcher reads the image
		err = &spec.FieldError{Field: "user.name", Problem: "a launcher takes ids; look the name up first"}
	}
	return c, err
}

// openStore makes the file system for the sandbox's writes: a detached mount, which the caller
// must close. mapped says that the mount shows the ids as processes inside see them. If the
// request names no storage and the disk cannot have the file system, it is in memory.
func (m *creation) openStore() (f *os.File, mapped bool, err error) {
	if m.request.Config.Storage == spec.StorageDisk {
		m.record.Image, f, err = m.launcher.makeImage(m.id, storeLimits(m.request.Config))
		if err == nil {
			return f, true, nil
		}
		if m.asked.Storage != "" || !imageless(err) {
			return nil, false, refusedImage(err)
		}
		c, refused := completed(m.asked, spec.StorageMemory)
		if refused != nil {
			return nil, false, fmt.Errorf("%w; and on disk: %w", fault.Refusal(refused), err)
		}
		m.request.Config, m.record.Config = c, c
		m.record.Notes = append(m.record.Notes, fmt.Sprintf("its writes are kept in %s of memory, not on disk: %v", c.Limits.Disk, err))
	}
	f, err = store.Memory(storeLimits(m.request.Config))
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
