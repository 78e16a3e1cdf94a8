package filewatch

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/watch"
	"github.com/sandbox-runtime/sandbox-runtime/internal/kernel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/launcher/record"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A fileWatch tells which files of a sandbox change. The kernel tells all changes of the
// sandbox's own store. In a writable bind from the host it tells only writes: for more, it
// would tell all changes of that file system of the host.
type fileWatch struct {
	pool  *Pool
	group *Group
	store *watch.Watch
	all   []*watch.Watch
	// top is the store's.
	top   *os.File
	image OpenImage
	// partial are the binds and overlays with changes that are not told.
	partial []string
	// notes name places without any told change.
	notes []string
}

// A Watcher watches the files of one sandbox, from the first command on that asks for changed
// files. It is safe for concurrent use.
type Watcher struct {
	box   *record.Sandbox
	pool  *Pool
	image OpenImage

	// making is held while a goroutine begins to watch. It is taken before mu.
	making sync.Mutex
	// mu guards current, which is nil until the first such command.
	mu      sync.Mutex
	current *fileWatch
}

// OpenImage opens the root directory of an image that the sandbox of a record uses.
type OpenImage func(r record.Record, id string) (*os.File, error)

// New returns the watcher of a sandbox, which takes its groups from the pool.
func New(box *record.Sandbox, pool *Pool, image OpenImage) *Watcher {
	return &Watcher{box: box, pool: pool, image: image}
}

// Watching says that the watcher watches files now.
func (w *Watcher) Watching() bool { return w.present() != nil }

func (w *Watcher) present() *fileWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

func (w *Watcher) watch(r record.Record) (*fileWatch, error) {
	w.making.Lock()
	defer w.making.Unlock()
	if f := w.present(); f != nil {
		return f, nil
	}
	f, err := newFileWatch(w.pool, w.image, r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = f
	return f, nil
}

// Stop ends the watch until the next command wants to know. The kernel takes some
// milliseconds to end a watch, so a goroutine of tending waits for the kernel.
func (w *Watcher) Stop(tending *sync.WaitGroup) {
	w.mu.Lock()
	f := w.current
	w.current = nil
	w.mu.Unlock()
	if f != nil {
		tending.Go(f.close)
	}
}

func newFileWatch(pool *Pool, image OpenImage, r record.Record) (_ *fileWatch, err error) {
	binds := record.WritableBinds(r.Config)
	group, err := pool.Take(len(binds) > 0)
	if err != nil {
		return nil, err
	}
	f := &fileWatch{pool: pool, group: group, image: image}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.top, err = record.OpenStore(r.Init); err != nil {
		return nil, err
	}
	if f.store, err = group.FileSystem(func() (*os.File, error) { return record.OpenRooted(f.top, ".", record.ToRead) }); err != nil {
		return nil, err
	}
	f.all = []*watch.Watch{f.store}
	if !OverlayWritesTold() {
		for _, t := range r.Trees {
			f.partial = append(f.partial, t.Path)
		}
	}
	for _, target := range binds {
		if err := f.addBind(r.Init, target); err != nil {
			f.notes = append(f.notes, fmt.Sprintf("which files change in %s is not told: %v", target, err))
		} else {
			f.partial = append(f.partial, target)
		}
	}
	return f, nil
}

// OverlayWritesTold says whether the kernel tells of an overlay's layer that a file is
// written to that is there already: Linux 6.5, "ovl: enable fsnotify events on
// underlying real files".
var OverlayWritesTold = sync.OnceValue(func() bool {
	host, err := kernel.Describe()
	return err == nil && !host.Version.Before(kernel.Version{Major: 6, Minor: 5})
})

// addBind watches the writes to a bind. It does not keep the bind busy, so that the bind
// can be unmounted.
func (f *fileWatch) addBind(init process.ID, target string) error {
	w, err := f.group.Mount(func() (*os.File, error) { return record.OpenShown(init, target, record.ToRead) })
	if err == nil && !slices.Contains(f.all, w) {
		f.all = append(f.all, w)
	}
	return err
}

// close ends the watch. The rest goes with the process.
func (f *fileWatch) close() {
	for _, w := range f.all {
		w.Close()
	}
	descriptor.Close(f.top)
	_ = f.pool.Leave(f.group) // as above
}

// A Recording keeps which files change while one exec runs. Nil is that of an exec
// that nobody wants to know it of.
type Recording struct {
	box       *record.Sandbox
	watch     *fileWatch
	recording *watch.Recording
	// err says why it is not known.
	err error
}

// Begin begins to record for a command. A failure keeps no command from running: the end
// of the record tells it.
func (w *Watcher) Begin(r record.Record, c spec.Command) *Recording {
	// A detached command may outlive the watch.
	if c.Detached || c.NoFiles {
		return nil
	}
	f := &Recording{box: w.box}
	if f.watch, f.err = w.watch(r); f.err != nil {
		return f
	}
	f.recording, f.err = watch.Record(f.watch.all...)
	return f
}

// Discard ends it, if end has not.
func (f *Recording) Discard() {
	if f != nil && f.recording != nil {
		f.recording.Discard()
	}
}

// End puts the changes into the Result.
func (f *Recording) End(r *spec.Result) {
	if f == nil {
		return
	}
	if f.err != nil {
		f.Discard()
		r.Notes = append(r.Notes, fmt.Sprintf("which files changed is not known: %v", f.err))
		return
	}
	changes, missed := f.recording.End()
	r.Files = f.watch.files(changes, f.box)
	r.Files.Truncated = r.Files.Truncated || missed
	r.Notes = append(r.Notes, f.watch.notes...)
}

// maxFileBytes bounds the paths of a Result.
const maxFileBytes = 1 << 20

// files are changes as the sandbox sees them.
func (f *fileWatch) files(changes []watch.Change, box *record.Sandbox) *spec.Files {
	files := &spec.Files{Partial: f.partial}
	if len(changes) == 0 {
		return files
	}
	view := newStoreView(box, f.image, f.top)
	defer view.close()
	kinds := map[string]fileKind{}
	for _, c := range changes {
		path, kind := c.Path, plainKind(c)
		if c.Watch == f.store {
			path, kind = view.kind(c)
		}
		// Of a directory there may be two: that of its name, and its own.
		if kind > kinds[path] {
			kinds[path] = kind
		}
	}
	delete(kinds, "")
	size := 0
	for _, path := range slices.Sorted(maps.Keys(kinds)) {
		into := map[fileKind]*[]string{created: &files.Created, modified: &files.Modified, deleted: &files.Deleted}[kinds[path]]
		if into == nil {
			continue
		}
		if size += len(path); len(*into) >= spec.MaxFiles || size > maxFileBytes {
			files.Truncated = true
			continue
		}
		*into = append(*into, path)
	}
	return files
}

// A fileKind is the kind of a change; of two, the greater one says more.
type fileKind int

const (
	unchanged fileKind = iota
	modified
	deleted
	created
)

func plainKind(c watch.Change) fileKind {
	switch {
	case !c.Was && c.Is:
		return created
	case c.Was && !c.Is:
		return deleted
	case c.Was:
		return modified
	}
	return unchanged
}
