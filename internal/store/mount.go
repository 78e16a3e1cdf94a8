package store

import (
	"os"

	"github.com/sandbox-runtime/sandbox-runtime/internal/fsmount"
)

// An option of a file system; without a value it is a flag.
type option struct{ key, value string }

// mount makes a detached mount of a new file system, or of a device's, nosuid and
// nodev.
func mount(fsType, source string, options []option) (*os.File, error) {
	fs, err := fsmount.Open(fsType, source)
	if err != nil {
		return nil, err
	}
	defer fs.Close()
	for _, o := range options {
		if err := fs.Set(o.key, o.value); err != nil {
			return nil, err
		}
	}
	mnt, err := fs.Mount()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(mnt), source), nil
}
