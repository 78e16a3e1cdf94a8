package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// usable says whether a directory of content has this part, and is not known to be damaged. The next pull replaces other
// content.
func usable(dir, part string) (bool, error) {
	info, err := os.Lstat(filepath.Join(dir, part))
	if isAbsent(err) {
		return false, nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return false, err
	}
	damaged, err := exists(filepath.Join(dir, damagedName))
	return !damaged, err
}

// openContent opens a part of an image for reading. A missing part, or a part of another type, is damage of the image.
func (s *Store) openContent(image Digest, part string) (*os.File, error) {
	damaged := &DamagedError{"image " + string(image), fmt.Sprintf("the file %s is missing, or not a regular file", part)}
	// The open of a named pipe must not wait: the caller has the lock of the store.
	f, err := os.OpenFile(filepath.Join(s.imageDir(image), part), unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if isAbsent(err) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) { // a socket, a device
		return nil, damaged
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = damaged
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// isAbsent says that a path leads to no file: an entry is missing, a link, or not a directory.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
