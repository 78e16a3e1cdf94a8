package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A reader is a regular file that is read.
type reader struct{ f *os.File }

func (f *reader) close() { _ = f.f.Close() } // it was only read

// open opens a file and returns its beginning: for most files, all of it. It does not wait
// for the other end of a pipe, and reads regular files only.
func (s *server) open(name string, r *request) (*answer, error) {
	f, err := s.tree.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = unix.EISDIR
	case !info.Mode().IsRegular():
		err = ErrNotRegular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	file := &reader{f}
	a, err := file.read(r.offset, r.size)
	if err != nil || a.last {
		file.close()
		return a, err
	}
	a.handle, err = s.addObject(file)
	return a, err
}

// read returns so many bytes from there on, at most a chunk; fewer only at the
// end.
func (f *reader) read(offset int64, size uint32) (*answer, error) {
	b := make([]byte, min(size, chunk))
	n, err := f.f.ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		return &answer{data: b[:n], last: true}, nil
	}
	return &answer{data: b[:n]}, err
}

// A listing is a directory that is read.
type listing struct {
	mu sync.Mutex
	f  *os.File
}

func (l *listing) close() { _ = l.f.Close() } // it was only read

func (s *server) list(name string) (*answer, error) {
	f, err := s.tree.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	l := &listing{f: f}
	a, err := l.next()
	if err != nil || a.last {
		l.close()
		return a, err
	}
	a.handle, err = s.addObject(l)
	return a, err
}

// next describes the next entries, in the directory's own order. Entries that vanish
// meanwhile are left out.
func (l *listing) next() (*answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	names, err := l.f.Readdirnames(listBatch)
	a := &answer{last: errors.Is(err, io.EOF)}
	if err != nil && !a.last {
		return nil, err
	}
	err = descriptor.Use(l.f, func(dir int) error {
		a.infos, err = infosAt(dir, names)
		return err
	})
	return a, err
}

func infosAt(dir int, names []string) (infos []Info, err error) {
	for _, name := range names {
		info, err := infoAt(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func infoAt(dir int, name string) (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Info{}, err
	}
	i := Info{
		Name: name, Size: st.Size, Mode: fileMode(st.Mode), ModTime: time.Unix(st.Mtim.Unix()), UID: st.Uid, GID: st.Gid,
	}
	if i.Mode&fs.ModeSymlink == 0 {
		return i, nil
	}
	var err error
	if i.Link, err = descriptor.ReadLink(dir, name); err == unix.EINVAL { // it is another by now
		err = nil
	}
	return i, err
}
