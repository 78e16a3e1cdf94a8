package files

import (
	"errors"
	"io/fs"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A writer is a file that takes its name when all of it is there.
type writer struct {
	mode uint32

	mu    sync.Mutex
	draft *draft // nil: it is over
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
	d, err := newDraft(s.tree, dir, base)
	if err != nil {
		return nil, err
	}
	return &writer{mode: mode, draft: d}, nil
}

func (w *writer) write(data []byte, offset int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draft == nil {
		return unix.EBADF
	}
	_, err := (&Sparse{File: w.draft.file, Size: offset}).Write(data)
	return err
}

// commit puts the file in its place, whole. A file of this size may end in a hole.
func (w *writer) commit(size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draft == nil {
		return unix.EBADF
	}
	d := w.draft
	w.draft = nil
	err := d.file.Truncate(size)
	if err == nil {
		err = d.file.Chmod(goMode(w.mode))
	}
	if err == nil {
		err = d.place()
	}
	return errors.Join(err, d.close())
}

// close gives up writes that were not committed.
func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.draft != nil {
		_ = w.draft.close() // no caller is left for the error
		w.draft = nil
	}
}

// putFile writes a file that fits into one request.
func (s *server) putFile(name string, r *request) (*answer, error) {
	w, err := s.create(name, r.mode)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.write(r.data, 0); err != nil {
		return nil, err
	}
	return &answer{}, w.commit(int64(len(r.data)))
}
