// Package conffiles finds the configuration files below /etc that the host's packages have brought,
// for programs in a sandbox. It has the names that no sandbox sees, too. It reads the databases of
// dpkg and rpm, but no configuration file: only the caller decides about the present file.
package conffiles

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A File is a configuration file of an installed package with a program.
type File struct {
	// Name is the path below /etc.
	Name string
	// Sum is the sum of the text that the package has brought, in hexadecimal digits: MD5 or SHA-256.
	Sum string
}

// DpkgDatabase is the file with the state of all packages of dpkg. Each change of a package replaces
// the file.
const DpkgDatabase = "/var/lib/dpkg/status"

// Databases are the files on which [Reader.Files] depends.
func Databases() []string { return append([]string{DpkgDatabase}, RPMDatabases...) }

// mostDatabase bounds the size of each file of dpkg. A host with 5,000 packages has 6 MB.
const mostDatabase = 64 << 20

// A Keeper keeps a text for later processes. Only root and the user of this process can change
// the text.
type Keeper interface {
	Load() ([]byte, error)
	Store([]byte) error
}

// A Reader reads the files of the host's packages, and remembers the files as long as no package
// changes. The zero value can be used, by several goroutines.
type Reader struct {
	// Keep keeps the files for other processes. Without it the packages of rpm have no files: the
	// query takes up to seconds.
	Keep Keeper

	mu    sync.Mutex
	of    string
	files []File
}

// A version is one state of a database.
type version struct {
	device, inode uint64
	changed       unix.Timespec
	size          int64
}

// Files returns the configuration files of the packages that have a program, without the names
// that [Never] has. A host without dpkg and rpm has none. The caller must not change the slice.
func (r *Reader) Files() ([]File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range Databases() {
		f, err := descriptor.OpenFile(unix.AT_FDCWD, name, descriptor.NoMagicLinks, unix.O_RDONLY|unix.O_NONBLOCK)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return r.read(f)
	}
	return nil, nil
}

// read returns the files of an open database.
func (r *Reader) read(f *os.File) ([]File, error) {
	now, err := versionOf(f)
	if err != nil || now == (version{}) {
		return nil, err
	}
	if of := versionKey(f.Name(), now); of != r.of {
		if r.files, err = r.filesOf(f, now.size, of); err != nil {
			r.of = ""
			return nil, err
		}
		r.of = of
	}
	return r.files, nil
}

// filesOf returns the files of a version of a database: those that were kept, or those that the
// database has.
func (r *Reader) filesOf(f *os.File, size int64, key string) ([]File, error) {
	if r.Keep != nil {
		if text, err := r.Keep.Load(); err == nil {
			if files, ok := decode(text, key); ok {
				return files, nil
			}
		}
	}
	var files []File
	switch {
	case f.Name() == DpkgDatabase:
		text, err := readAll(f, size)
		if err != nil {
			return nil, err
		}
		files = dpkgFiles(text, "")
	case r.Keep != nil:
		ctx, cancel := context.WithTimeout(context.Background(), rpmTime)
		defer cancel()
		var err error
		if files, err = queryRPM(ctx, path.Dir(f.Name()), ""); err != nil {
			return nil, nil // as on a host without a list of packages
		}
	}
	if r.Keep != nil {
		_ = r.Keep.Store(encode(files, key)) // the next process reads the database again
	}
	return files, nil
}

// versionOf is the zero version if another user than root can change the file.
func versionOf(f *os.File) (version, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return version{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o022 != 0 {
		return version{}, nil
	}
	return version{st.Dev, st.Ino, st.Ctim, st.Size}, nil
}

// readAll reads a file of about this size.
func readAll(f *os.File, size int64) ([]byte, error) {
	var text bytes.Buffer
	text.Grow(int(min(max(size, 0), mostDatabase)) + bytes.MinRead)
	_, err := text.ReadFrom(io.LimitReader(f, mostDatabase))
	return text.Bytes(), err
}
