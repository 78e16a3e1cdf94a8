// Package draft makes files that become visible whole or not at all: the content goes to a draft, which then takes
// the name of the file. A path can lead through a held directory: /proc/self/fd/N/NAME. The package does not remove the
// drafts of killed processes.
package draft

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Suffix ends the name of a draft, unless the caller names the draft.
const Suffix = ".new"

// A File is a file that Write replaces. Readers see the old content or all of the new content.
type File struct {
	Path string
	// Draft is the path of the draft, in the same file system. A killed process leaves the draft. The next Write with
	// this draft replaces it; otherwise the owner of the directory removes it. Empty: Path with Suffix.
	Draft string
	// Mode is the mode of a new draft, less the umask. Zero: 0600.
	Mode os.FileMode
	// IsDurable has the file on disk when Write returns.
	IsDurable bool
}

// Write replaces the file. After an error there is no draft.
func (f File) Write(fill func(io.Writer) error) error {
	if f.Draft == "" {
		f.Draft = f.Path + Suffix
	}
	if f.Mode == 0 {
		f.Mode = 0o600
	}
	d, err := os.OpenFile(f.Draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, f.Mode)
	if err != nil {
		return err
	}
	err = fill(d)
	if err == nil && f.IsDurable {
		err = d.Sync()
	}
	if err = errors.Join(err, d.Close()); err == nil {
		err = os.Rename(f.Draft, f.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Draft))
	}
	if f.IsDurable {
		return Sync(filepath.Dir(f.Path))
	}
	return nil
}

// WriteBytes is Write with a content.
func (f File) WriteBytes(content []byte) error {
	return f.Write(func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// Sync writes files and the names in directories to disk. It goes on after an error.
func Sync(paths ...string) (err error) {
	for _, path := range paths {
		f, failed := os.Open(path)
		if failed == nil {
			failed = errors.Join(f.Sync(), f.Close())
		}
		err = errors.Join(err, failed)
	}
	return err
}
