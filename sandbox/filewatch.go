package sandbox

import (
	"context"
	"path"

	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/files"
)

// FileEvent tells of a change.
type FileEvent struct {
	Type FileEventType
	// Path is the changed path in the sandbox. It is empty for FileEventsLost.
	Path string
	// Dir says that it is a directory.
	Dir bool
}

// FileEventType is the kind of a change of a file.
type FileEventType string

// The events of files. A moved file is removed at its old place and created at the new
// one. A file that replaces another one by a rename, as many programs do, is created.
const (
	FileCreated  FileEventType = "created"
	FileModified FileEventType = "modified"
	FileRemoved  FileEventType = "removed"
	// FileEventsLost: there were more than were taken; look yourself.
	FileEventsLost FileEventType = "lost"
)

// Watch tells changes in a directory and below, from its return on. Links are not
// followed. More than a few thousand directories are refused ([syscall.ENOSPC]). If the
// caller takes the events too slowly, the rest is dropped, and FileEventsLost says so. The
// caller must close it.
func (f *Files) Watch(ctx context.Context, name string) (*FileWatch, error) {
	w := &FileWatch{files: f, name: name}
	err := f.callServer(ctx, "watch", name, func(c *files.Client, full string) (err error) {
		w.root = path.Clean(full)
		w.watch, err = c.Watch(ctx, full)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// A FileWatch is a subscription to changes of files.
type FileWatch struct {
	files      *Files
	name, root string
	watch      *files.Watch
}

// Next waits for the next event. After an error of ctx it may be called again;
// any other is the end, as [fs.ErrNotExist] when the directory was removed.
// Processes that make and remove files faster than this is called may make
// events come together, or twice.
func (w *FileWatch) Next(ctx context.Context) (FileEvent, error) {
	if w.watch == nil {
		return FileEvent{}, ErrClosed
	}
	e, err := w.watch.Next(ctx)
	if err != nil {
		return FileEvent{}, w.files.worded("watch", w.name, err)
	}
	types := map[files.Kind]FileEventType{files.Created: FileCreated, files.Modified: FileModified, files.Removed: FileRemoved}
	if t, ok := types[e.Kind]; ok {
		return FileEvent{Type: t, Path: path.Join(w.root, e.Path), Dir: e.Dir}, nil
	}
	return FileEvent{Type: FileEventsLost}, nil
}

// Close ends the watch, and all waits for it. It is safe to call twice.
func (w *FileWatch) Close() error {
	if w.watch == nil {
		return nil
	}
	return w.watch.Close()
}
