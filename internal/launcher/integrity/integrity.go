// Package integrity finds out whether the kernel has lost writes of a sandbox. A write to a
// sandbox's image can succeed and be lost later, when the host's disk is full or broken.
// PID 1 of the sandbox holds a file that was opened before any such error, and this package
// asks that file.
package integrity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/store"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
)

// Verify returns an error that is [fault.ErrDamaged] if a write to the files of a
// sandbox was lost. With sync the data in memory is written to disk first.
func Verify(ctx context.Context, l record.Roots, r record.Record, sync bool) error {
	for _, image := range r.Images() {
		var err error
		switch {
		case !sync:
			err = store.Failure(l.ImagePath(image))
		case image == r.Image:
			err = CheckOwn(ctx, l, r)
		default:
			err = CheckFrozen(ctx, l.ImagePath(image))
		}
		if err != nil {
			return Damaged(l, err)
		}
	}
	return nil
}

// Damaged words a failure of an image, and returns other errors as they are.
func Damaged(l record.Roots, err error) error {
	if !errors.As(err, new(*store.FailureError)) {
		return err
	}
	return fmt.Errorf("%w: %w; make room below %s, copy out single files with exec and check each of them, and remove the sandbox with down",
		fault.ErrDamaged, err, l.Data)
}

// CheckOwn checks the image that the sandbox writes to. Where PID 1 has ended, its
// image is mounted for that.
func CheckOwn(ctx context.Context, l record.Roots, r record.Record) error {
	path := l.ImagePath(r.Image)
	top, err := record.OpenStore(r.Init)
	if err != nil {
		return CheckFrozen(ctx, path)
	}
	defer top.Close()
	held, err := record.OpenTop(r.Init, top)
	if err != nil { // a note of the sandbox says so, or an older release has made it
		return store.Check(ctx, path, top, nil)
	}
	defer held.Close()
	return store.Check(ctx, path, top, held)
}

// CheckFrozen checks an image that no PID 1 can be asked about.
func CheckFrozen(ctx context.Context, path string) error {
	mounted, err := store.MountImage(path)
	if err != nil {
		return err
	}
	defer mounted.Close()
	return store.Check(ctx, path, mounted, nil)
}

// roomAtLeast is the room that the host's disk must have beside the data that is still in
// memory. File systems take some of it, and later writes.
const roomAtLeast = 64 << 20

// ShortOfRoom says that the disk of the data directory may have no room for the data in
// memory that is not in the images yet.
func ShortOfRoom(data string) bool {
	var disk unix.Statfs_t
	var memory unix.Sysinfo_t
	if unix.Statfs(data, &disk) != nil || unix.Sysinfo(&memory) != nil {
		return true
	}
	free := int64(disk.Bavail) * disk.Bsize
	if free > int64(memory.Totalram)*int64(memory.Unit)+roomAtLeast {
		return false
	}
	unwritten, err := unwrittenBytes()
	return err != nil || free < unwritten+roomAtLeast
}

// unwrittenBytes is the amount of file data in the host's memory that is not on disk yet:
// Dirty and Writeback of proc_meminfo(5).
func unwrittenBytes() (int64, error) {
	const path = "/proc/meminfo"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var kib int64
	for _, name := range []string{"Dirty:", "Writeback:"} {
		_, rest, _ := strings.Cut(string(text), "\n"+name)
		value, _, _ := strings.Cut(rest, " kB\n")
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil { // a missing line is an error, too
			return 0, fmt.Errorf("%s in %s: %w", name, path, err)
		}
		kib += n
	}
	return kib << 10, nil
}
