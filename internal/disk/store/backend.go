package store

import (
	"errors"
	"fmt"
	"os"
)

// A Backend is where the files of one sandbox lie.
type Backend interface {
	// Durable says that the files stay when the sandbox's PID 1 ends.
	Durable() bool
	// Margin is how many bytes the file system does not give out: with fewer bytes left the
	// store is full.
	Margin() int64
	// Mount returns a new detached mount of the files, which the caller must close. The
	// error is [errors.ErrUnsupported] where only PID 1 has the files.
	Mount() (*os.File, error)
	// TakesWrites returns an error if the mounted files can only be read.
	TakesWrites(mounted *os.File) error
	// Abandon spares a removal the writing of files that nobody will read. The files can no
	// longer be used afterwards.
	Abandon(mounted *os.File) error
}

// BackendOf is the backend of a storage by its name in a configuration. The path is that of
// its image, if it has one.
func BackendOf(storage, image string) Backend {
	if storage == "disk" {
		return InImage(image)
	}
	return InMemory{}
}

// memoryMargin is the part of its last bytes that tmpfs, or XFS, keeps back.
const memoryMargin = 64 << 10

// InMemory is the backend of files that [Memory] holds.
type InMemory struct{}

// Durable is false: the files end with their last mount.
func (InMemory) Durable() bool { return false }

// Margin is that of tmpfs.
func (InMemory) Margin() int64 { return memoryMargin }

// Mount is not supported.
func (InMemory) Mount() (*os.File, error) {
	return nil, fmt.Errorf("mount files in memory: %w", errors.ErrUnsupported)
}

// TakesWrites is always nil.
func (InMemory) TakesWrites(*os.File) error { return nil }

// Abandon does nothing: files in memory are never written anywhere.
func (InMemory) Abandon(*os.File) error { return nil }

// imageMargin is the room that ext4 keeps back: ext4 takes room for a large write at once,
// and gives back the rest when the write fails.
const imageMargin = 1 << 20

// An InImage is the backend of files in the image at this path.
type InImage string

// Durable is true: the files stay as long as the image.
func (InImage) Durable() bool { return true }

// Margin is that of ext4.
func (InImage) Margin() int64 { return imageMargin }

// Mount is [MountImage].
func (i InImage) Mount() (*os.File, error) { return MountImage(string(i)) }

// TakesWrites is [TakesWrites].
func (InImage) TakesWrites(mounted *os.File) error { return TakesWrites(mounted) }

// Abandon is [Abandon].
func (i InImage) Abandon(mounted *os.File) error { return Abandon(string(i), mounted) }
