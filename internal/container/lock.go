package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// ErrBusy says that another process has been at work on the container for
// longer than is waited for.
var ErrBusy = errors.New("another process creates, starts or deletes it")

// lockPatience is how long a process waits for another's work on a container.
const lockPatience = 10 * time.Second

// lockState waits for the lock of a state directory, and returns the directory. If another directory has the path after
// the wait, lockState waits for the lock of that directory. [fs.ErrNotExist] says that no directory has the path. The
// lock ends when the directory is closed.
//
// A process holds the lock of the state directory while it creates, starts or deletes the
// container. libcontainer has no lock: if two processes delete a container that a third one
// creates, a container is left that nobody can delete.
func lockState(path string) (*os.File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	for {
		dir, err := descriptor.OpenLocked(ctx, path, unix.O_DIRECTORY|unix.O_NOFOLLOW, descriptor.Exclusive)
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("container %s: %w", filepath.Base(path), ErrBusy)
		}
		if err != nil {
			return nil, err
		}
		hasName, err := descriptor.HasName(dir)
		if hasName {
			return dir, nil
		}
		dir.Close()
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", filepath.Base(path), err)
		}
		// The directory was deleted meanwhile, or deleted and created again.
	}
}

// An identity tells a state directory from one that has its name, and maybe its
// inode number, after it. The time is zero where the file system keeps none.
type identity struct {
	device, inode uint64
	born          unix.StatxTimestamp
}

func identityOf(dir *os.File) identity {
	id, _ := statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH) // it is open
	return id
}

func identify(path string) (identity, error) {
	return statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

func statx(dir int, path string, flags int) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, flags, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return identity{}, err
	}
	return identity{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Btime}, nil
}
