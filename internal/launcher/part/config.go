package part

import (
	"errors"
	"fmt"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/networks"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// StorageOf returns the place of a sandbox's writes. Without a requested place it is memory for a
// tied sandbox, and the disk for a sandbox that outlives its maker.
func StorageOf(r protocol.Create) spec.Storage {
	switch {
	case r.Config.Storage != "":
		return r.Config.Storage
	case r.Tied, r.Config.PID == spec.PIDHost:
		return spec.StorageMemory
	}
	return spec.StorageDisk
}

// Completed returns a configuration with all defaults filled in.
func Completed(c spec.Config, storage spec.Storage) (spec.Config, error) {
	asked := c.Limits.Disk
	c.Storage = storage
	c, err := c.Complete()
	if err == nil && storage != spec.StorageDisk && asked > c.Limits.Memory {
		err = &spec.FieldError{Field: "limits.disk", Problem: fmt.Sprintf(
			"%s in memory is more than the %s of memory that the sandbox has; raise that with --memory, or keep the files on disk, with --storage disk",
			asked, c.Limits.Memory)}
	}
	if err == nil {
		err = errors.Join(CheckOpenFiles(c), networks.Check(c))
	}
	if err == nil && c.User.Name != "" && c.Image == "" { // the launcher reads the image
		err = &spec.FieldError{Field: "user.name", Problem: "a launcher takes ids; look the name up first"}
	}
	return c, err
}
