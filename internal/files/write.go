package files

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// tempPrefix begins the names of files that are being written.
const tempPrefix = ".sandbox-files-"

// A writer is a file that takes its name when all of it is there.
type writer struct {
	tree         Tree
	temp, target string
	mode         uint32

	mu sync.Mutex
	f  *os.File // nil: it is over
}

// maxLinks is how many symbolic links are followed, as the kernel has it
// (MAXSYMLINKS).
const maxLinks = 40

// resolve follows the links at the last part of a name, so that the file behind them is
// replaced and not the link. mode is that of the present file, 0 for none.
func (s *server) resolve(name string) (target string, mode fs.FileMode, err error) {
	for range maxLinks {
		info, err := s.tree.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return name, 0, nil
		case err != nil:
			return "", 0, err
		case info.IsDir():
			return "", 0, unix.EISDIR
		case info.Mode().IsRegular():
			return name, info.Mode(), nil
		case info.Mode()&fs.ModeSymlink == 0:
			return "", 0, ErrNotRegular
		}
		link, err := s.tree.Readlink(name)
		if err != nil {
			return "", 0, err
		}
		if !strings.HasPrefix(link, "/") {
			link = name[:strings.LastIndexByte(name, '/')+1] + link
		}
		name = link
	}
	return "", 0, unix.ELOOP
}

// create begins a file beside the one that it becomes. A mode of 0 is that of
// the file which it replaces.
func (s *server) create(name string, mode uint32) (*writer, error) {
	target, old, err := s.resolve(name)
	if err != nil {
		return nil, err
	}
	dir, base := target[:strings.LastIndexByte(target, '/')+1], target[strings.LastIndexByte(target, '/')+1:]
	if base == "" || base == "." || base == ".." {
		return nil, unix.EISDIR
	}
	switch {
	case mode != 0:
	case old != 0:
		mode = uint32(old.Perm())
	default:
		mode = 0o644
	}
	w := &writer{tree: s.tree, temp: dir + tempPrefix + strconv.FormatUint(rand.Uint64(), 36), target: target, mode: mode}
	w.f, err = s.tree.OpenFile(w.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (w *writer) write(data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return unix.EBADF
	}
	_, err := w.f.Write(data)
	return err
}

// commit puts the file in its place, whole.
func (w *writer) commit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return unix.EBADF
	}
	err := w.f.Chmod(goMode(w.mode))
	err = errors.Join(err, w.f.Close())
	w.f = nil
	if err == nil {
		err = w.tree.Rename(w.temp, w.target)
	}
	if err != nil {
		_ = w.tree.Remove(w.temp) // the error says enough
	}
	return err
}

// close gives up writes that were not committed.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f != nil {
		_, _ = w.f.Close(), w.tree.Remove(w.temp) // nobody is there to hear of it
		w.f = nil
	}
}

// put writes a file that fits into one request.
func (s *server) put(name string, r *request) (*answer, error) {
	w, err := s.create(name, r.mode)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.write(r.data); err != nil {
		return nil, err
	}
	return &answer{}, w.commit()
}
