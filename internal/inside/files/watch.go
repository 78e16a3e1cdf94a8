package files

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

const (
	// maxDirs is how many directories one watch has.
	maxDirs = 8192
	// maxQueue is how many events wait. Further events are lost, and the client is told.
	maxQueue = 4096

	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB |
		unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_ONLYDIR
)

// A watch follows a directory and all below it, by inotify(7). New directories are
// followed, with their content by then.
type watch struct {
	tree Tree
	root string
	f    *os.File // inotify's

	// dirs are the paths below root by their watch; only run uses it, once it
	// runs.
	dirs  map[int32]string
	ended sync.WaitGroup

	// mu guards the fields below.
	mu    sync.Mutex
	queue []Event
	lost  bool
	over  error
	// wake has room for one: something was queued.
	wake chan struct{}
}

func (s *server) watch(name string) (*answer, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watch{
		tree: s.tree, root: name, f: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}, wake: make(chan struct{}, 1),
	}
	if err := w.follow("", false); err != nil {
		return nil, errors.Join(err, w.f.Close())
	}
	w.ended.Go(w.run)
	return s.answerHandle(w)
}

func (w *watch) close() {
	_ = w.f.Close() // there is nothing in it to lose
	w.ended.Wait()
}

// follow watches a directory and those below it, and announces the content of a new one.
func (w *watch) follow(path string, announce bool) error {
	todo := []string{path}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		found, err := w.add(at, announce)
		if err != nil && (at == "" || errors.Is(err, unix.ENOSPC)) {
			return err
		}
		todo = append(todo, found...) // another may not be readable, or be gone
	}
	return nil
}

// add watches one directory, and returns those that are in it.
func (w *watch) add(path string, announce bool) (dirs []string, err error) {
	if len(w.dirs) >= maxDirs || len(path) > maxPath-maxName-1 {
		return nil, unix.ENOSPC
	}
	dir, err := w.tree.OpenFile(join(w.root, path), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	wd, err := w.watchFile(dir)
	if err != nil {
		return nil, err
	}
	w.dirs[wd] = path
	for {
		entries, err := dir.ReadDir(listBatch)
		for _, e := range entries {
			if announce {
				w.queueEvent(Created, join(path, e.Name()), e.IsDir())
			}
			if e.IsDir() {
				dirs = append(dirs, join(path, e.Name()))
			}
			if len(dirs) > maxDirs {
				return nil, unix.ENOSPC
			}
		}
		if errors.Is(err, io.EOF) {
			return dirs, nil
		}
		if err != nil {
			return dirs, err
		}
	}
}

// watchFile watches a directory that is open: by no path twice.
func (w *watch) watchFile(dir *os.File) (int32, error) {
	var wd int
	err := descriptor.Use(w.f, func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), watchMask)
		return err
	})
	return int32(wd), err
}

func join(dir, name string) string {
	switch {
	case name == "":
		return dir
	case dir == "":
		return name
	}
	return strings.TrimSuffix(dir, "/") + "/" + name
}

// run takes events until the watch is closed or its directory is gone.
func (w *watch) run() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.f.Read(buf)
		for b := buf[:max(n, 0)]; err == nil && len(b) >= unix.SizeofInotifyEvent; {
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:size]), "\x00")
			err = w.handleEvent(int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), name)
			b = b[size:]
		}
		if err != nil {
			w.end(err)
			return
		}
	}
}

// handleEvent works up one event; an error is the end.
func (w *watch) handleEvent(wd int32, mask uint32, name string) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.noteLoss()
		return nil
	}
	dir, ok := w.dirs[wd]
	switch {
	case !ok:
		return nil
	case mask&unix.IN_IGNORED != 0:
		delete(w.dirs, wd)
		return nil
	case mask&unix.IN_DELETE_SELF != 0:
		if dir == "" {
			w.queueEvent(Removed, "", true)
			return fs.ErrNotExist
		}
		return nil // its parent tells
	case name == "":
		return nil
	}
	w.changed(join(dir, name), mask)
	return nil
}

func (w *watch) changed(path string, mask uint32) {
	isDir := mask&unix.IN_ISDIR != 0
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.queueEvent(Created, path, isDir)
		if isDir && w.follow(path, true) != nil {
			w.noteLoss()
		}
	case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
		if isDir {
			w.leave(path)
		}
		w.queueEvent(Removed, path, isDir)
	default:
		w.queueEvent(Modified, path, isDir)
	}
}

// leave forgets a directory that is gone from its place: it may live on elsewhere.
func (w *watch) leave(path string) {
	for wd, at := range w.dirs {
		if at == path || strings.HasPrefix(at, path+"/") {
			_ = descriptor.Use(w.f, func(fd int) error { // the kernel may have removed it, or the watch is closed
				_, err := unix.InotifyRmWatch(fd, uint32(wd))
				return err
			})
			delete(w.dirs, wd)
		}
	}
}

// queueEvent queues an event, unless it repeats the event before. Files that are being written
// have no name yet.
func (w *watch) queueEvent(kind Kind, path string, dir bool) {
	if strings.HasPrefix(path[strings.LastIndexByte(path, '/')+1:], tempPrefix) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e := Event{kind, path, dir}
	switch n := len(w.queue); {
	case n > 0 && w.queue[n-1] == e:
		return
	case n >= maxQueue:
		w.lost = true
	default:
		w.queue = append(w.queue, e)
	}
	w.wakeUp()
}

func (w *watch) noteLoss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
	w.wakeUp()
}

func (w *watch) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = err
	w.wakeUp()
}

// wakeUp is called with mu held.
func (w *watch) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next waits for events. One client asks at a time.
func (w *watch) next() (*answer, error) {
	for {
		events, err := w.takeQueued()
		if err != nil || len(events) > 0 {
			return &answer{events: events}, err
		}
		<-w.wake
	}
}

func (w *watch) takeQueued() ([]Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxBatch-1)
	events := append([]Event(nil), w.queue[:n]...)
	w.queue = append(w.queue[:0], w.queue[n:]...)
	if len(w.queue) == 0 && w.lost {
		w.lost = false
		events = append(events, Event{Kind: Lost})
	}
	if len(events) > 0 {
		return events, nil
	}
	if w.over != nil {
		w.wakeUp() // for a client that asks again
	}
	return nil, w.over
}
