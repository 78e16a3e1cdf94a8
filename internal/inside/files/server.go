package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// A server answers one client.
type server struct {
	tree Tree
	// prefix is where the client sees the tree; empty: at names as they are.
	prefix string

	sending sync.Mutex // held by the one that writes to out
	out     io.Writer

	running sync.WaitGroup
	// slots are of requests under way.
	slots *semaphore.Weighted

	// mu guards the fields below.
	mu      sync.Mutex
	handles map[uint32]openObject
	last    uint32
}

// An openObject is the object of a handle.
type openObject interface{ close() }

// Serve answers requests until in ends, which is no error. The tree is shown at
// prefix; where that is empty, names are taken as they are.
func Serve(tree Tree, prefix string, in io.Reader, out io.Writer) error {
	s := &server{tree: tree, prefix: prefix, out: out, slots: semaphore.NewWeighted(maxRunning), handles: map[uint32]openObject{}}
	defer s.end()
	if err := s.send(&answer{handle: Version}); err != nil {
		return err
	}
	for {
		b, err := readFrame(in, nil)
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r, err := parseRequest(b)
		if err != nil {
			return err
		}
		if err := s.handle(r); err != nil {
			return err
		}
	}
}

// end releases all open objects, and those that were begun and not committed.
func (s *server) end() {
	s.mu.Lock()
	all := s.handles
	s.handles = nil
	s.mu.Unlock()
	for _, o := range all {
		o.close()
	}
	s.running.Wait()
}

// handle has a request carried out.
func (s *server) handle(r request) error {
	switch r.op {
	case opPing: // from a client that checks whether this process runs at all
		return s.send(&answer{id: r.id})
	case opClose:
		s.running.Go(func() { s.drop(r.handle) })
		return nil
	}
	if !s.slots.TryAcquire(1) {
		return s.send(&answer{id: r.id, code: codeBusy})
	}
	s.running.Go(func() {
		defer s.slots.Release(1)
		a, err := s.carryOut(&r)
		if err != nil {
			a = &answer{code: code(err)}
		}
		a.id = r.id
		// Nobody reads it any more: the end of in comes next.
		_ = s.send(a)
	})
	return nil
}

func (s *server) send(a *answer) error {
	b := a.encode()
	s.sending.Lock()
	defer s.sending.Unlock()
	_, err := s.out.Write(b)
	return err
}

// code is the error on the wire. No text goes there, and no path.
func code(err error) uint32 {
	var errno syscall.Errno
	var path *fs.PathError
	switch {
	case errors.Is(err, ErrNotRegular):
		return codeNotRegular
	case errors.Is(err, ErrTooMany):
		return codeBusy
	case errors.As(err, &errno) && errno != 0 && errno < 4096:
		return uint32(errno)
	case errors.As(err, &path) && path.Err != nil && path.Err.Error() == "path escapes from parent": // package os has no name for it
		return codeEscapes
	case errors.Is(err, fs.ErrNotExist):
		return uint32(unix.ENOENT)
	case errors.Is(err, fs.ErrExist):
		return uint32(unix.EEXIST)
	case errors.Is(err, fs.ErrPermission):
		return uint32(unix.EACCES)
	case errors.Is(err, fs.ErrInvalid), errors.Is(err, os.ErrClosed):
		return uint32(unix.EINVAL)
	}
	return codeOther
}

// addObject gives an open object a handle.
func (s *server) addObject(o openObject) (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handles == nil || len(s.handles) >= maxHandles {
		o.close()
		return 0, ErrTooMany
	}
	for s.last++; s.last == 0 || s.handles[s.last] != nil; {
		s.last++
	}
	s.handles[s.last] = o
	return s.last, nil
}

func (s *server) drop(handle uint32) {
	s.mu.Lock()
	o := s.handles[handle]
	delete(s.handles, handle)
	s.mu.Unlock()
	if o != nil {
		o.close()
	}
}

// withObject asks the object of a handle, of one kind.
func withObject[T openObject](s *server, handle uint32, ask func(T) (*answer, error)) (*answer, error) {
	s.mu.Lock()
	o, ok := s.handles[handle].(T)
	s.mu.Unlock()
	if !ok {
		return nil, unix.EBADF
	}
	return ask(o)
}

func (s *server) carryOut(r *request) (*answer, error) {
	switch r.op {
	case opRead, opWrite, opCommit, opNext, opEvents:
		return s.useObject(r)
	}
	name, err := nameBelow(s.prefix, r.name)
	if err != nil {
		return nil, err
	}
	switch r.op {
	case opOpen:
		return s.open(name, r)
	case opPut:
		return s.putFile(name, r)
	case opCreate:
		w, err := s.create(name, r.mode)
		if err != nil {
			return nil, err
		}
		return s.answerHandle(w)
	case opStat, opLstat:
		return s.stat(name, r.op == opStat)
	case opList:
		return s.list(name)
	case opWatch:
		return s.watch(name)
	}
	return &answer{}, s.change(name, r)
}

// useObject works with an open object.
func (s *server) useObject(r *request) (*answer, error) {
	switch r.op {
	case opRead:
		return withObject(s, r.handle, func(f *reader) (*answer, error) { return f.read(r.offset, r.size) })
	case opNext:
		return withObject(s, r.handle, (*listing).next)
	case opEvents:
		return withObject(s, r.handle, (*watch).next)
	case opWrite:
		return withObject(s, r.handle, func(w *writer) (*answer, error) { return &answer{}, w.write(r.data, r.offset) })
	}
	return withObject(s, r.handle, func(w *writer) (*answer, error) { return &answer{}, w.commit(r.offset) })
}

func (s *server) answerHandle(o openObject) (*answer, error) {
	handle, err := s.addObject(o)
	return &answer{handle: handle}, err
}

// change is all that only changes names and modes.
func (s *server) change(name string, r *request) error {
	switch r.op {
	case opMkdir:
		return s.tree.Mkdir(name, goMode(r.mode))
	case opMkdirAll:
		return s.tree.MkdirAll(name, goMode(r.mode))
	case opRename:
		to, err := nameBelow(s.prefix, r.to)
		if err != nil {
			return err
		}
		return s.tree.Rename(name, to)
	case opRemove:
		return s.tree.Remove(name)
	case opRemoveAll:
		return s.tree.RemoveAll(name)
	case opSymlink:
		return s.tree.Symlink(r.to, name)
	case opChmod:
		return s.tree.Chmod(name, goMode(r.mode))
	}
	return unix.ENOSYS
}

// goMode is a client's mode in the form of package os.
func goMode(mode uint32) fs.FileMode { return fileMode(mode&0o7777 | unix.S_IFREG) }

func (s *server) stat(name string, follow bool) (*answer, error) {
	look := s.tree.Lstat
	if follow {
		look = s.tree.Stat
	}
	fi, err := look(name)
	if err != nil {
		return nil, err
	}
	i := Info{Size: fi.Size(), Mode: fi.Mode(), ModTime: fi.ModTime()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		i.UID, i.GID = st.Uid, st.Gid
	}
	if i.Mode&fs.ModeSymlink != 0 {
		if i.Link, err = s.tree.Readlink(name); err != nil {
			return nil, err
		}
	}
	return &answer{infos: []Info{i}}, nil
}
