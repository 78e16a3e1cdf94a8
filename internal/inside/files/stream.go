package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync"
)

// A File is a regular file that is read. One goroutine uses it at a time.
type File struct {
	client *Client
	// ctx is that of Open, which bounds all reading: an io.Reader has no other.
	ctx    context.Context
	handle uint32
	offset int64
	left   int64 // that may be read still; negative: all
	data   []byte
	last   bool
	closed bool
}

// Open opens a file for reading from offset on, limit bytes of it; a negative
// limit is all. ctx bounds the reading, too.
func (c *Client) Open(ctx context.Context, name string, offset, limit int64) (*File, error) {
	f := &File{client: c, ctx: ctx, offset: offset, left: limit}
	a, err := c.call(ctx, request{op: opOpen, name: name, offset: offset, size: f.wanted()})
	if err != nil {
		return nil, err
	}
	f.handle = a.handle
	f.adopt(a)
	return f, nil
}

func (f *File) wanted() uint32 {
	if f.left < 0 {
		return chunk
	}
	return uint32(min(f.left, chunk))
}

func (f *File) adopt(a *answer) {
	f.data, f.last = a.data, a.last || len(a.data) == 0
	if f.left >= 0 {
		f.data = f.data[:min(int64(len(f.data)), f.left)] // in any case
		f.left -= int64(len(f.data))
	}
	f.offset += int64(len(f.data))
}

// Read implements [io.Reader].
func (f *File) Read(b []byte) (int, error) {
	switch {
	case f.closed:
		return 0, os.ErrClosed
	case len(b) == 0:
		return 0, nil
	case len(f.data) == 0 && (f.last || f.left == 0):
		return 0, io.EOF
	case len(f.data) == 0:
		a, err := f.client.call(f.ctx, request{op: opRead, handle: f.handle, offset: f.offset, size: f.wanted()})
		if err != nil {
			return 0, err
		}
		if f.adopt(a); len(f.data) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(b, f.data)
	f.data = f.data[n:]
	return n, nil
}

// Close lets go of the file. It is safe to call twice.
func (f *File) Close() error {
	if !f.closed && f.handle != 0 {
		f.client.release(f.handle)
	}
	f.closed = true
	return nil
}

// Write writes all of r to a file, which takes its name when all is there: after an error
// nothing is left. A mode of 0 is that of the replaced file, or 0644.
func (c *Client) Write(ctx context.Context, name string, r io.Reader, mode fs.FileMode) error {
	first, err := readChunk(r)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err != nil { // all of it
		_, err := c.call(ctx, request{op: opPut, name: name, mode: kernelMode(mode), data: first})
		return err
	}
	a, err := c.call(ctx, request{op: opCreate, name: name, mode: kernelMode(mode)})
	if err != nil {
		return err
	}
	size, err := c.writeAll(ctx, a.handle, first, r)
	if err != nil {
		c.release(a.handle)
		return err
	}
	_, err = c.call(ctx, request{op: opCommit, handle: a.handle, offset: size})
	c.release(a.handle)
	return err
}

// writeAll returns the size of the file. A chunk of zeros is not sent: the file has a hole there.
func (c *Client) writeAll(ctx context.Context, handle uint32, data []byte, r io.Reader) (size int64, err error) {
	for last := false; ; {
		if !isZero(data) {
			if _, err := c.call(ctx, request{op: opWrite, handle: handle, data: data, offset: size}); err != nil {
				return 0, err
			}
		}
		size += int64(len(data))
		if last {
			return size, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, endCause(ctx, context.Cause(ctx))
		}
		data, err = readChunk(r)
		last = errors.Is(err, io.EOF)
		if err != nil && !last {
			return 0, err
		}
	}
}

// readChunk is a full chunk, or io.EOF with the bytes before the end.
func readChunk(r io.Reader) ([]byte, error) {
	b := make([]byte, chunk)
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return b[:n], err
}

// kernelMode is a mode as chmod(2) has it.
func kernelMode(mode fs.FileMode) uint32 {
	m := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&flag != 0 {
			m |= bit
		}
	}
	return m
}

// Stat describes a file, Lstat a symbolic link itself.
func (c *Client) Stat(ctx context.Context, name string) (Info, error) {
	return c.stat(ctx, opStat, name)
}

// Lstat is Stat for a link itself, not for its target.
func (c *Client) Lstat(ctx context.Context, name string) (Info, error) {
	return c.stat(ctx, opLstat, name)
}

func (c *Client) stat(ctx context.Context, o op, name string) (Info, error) {
	a, err := c.call(ctx, request{op: o, name: name})
	if err != nil {
		return Info{}, err
	}
	if len(a.infos) != 1 {
		return Info{}, errAnswer
	}
	return a.infos[0], nil
}

var errAnswer = errors.New("the server of the files gives an answer to another call")

// List describes the entries of a directory, in its own order.
func (c *Client) List(ctx context.Context, name string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		a, err := c.call(ctx, request{op: opList, name: name})
		if err != nil {
			yield(Info{}, err)
			return
		}
		if a.handle != 0 {
			defer c.release(a.handle)
		}
		for handle := a.handle; ; {
			for _, info := range a.infos {
				if info.Name == "" {
					yield(Info{}, errAnswer)
					return
				}
				if !yield(info, nil) {
					return
				}
			}
			if a.last {
				return
			}
			if a, err = c.call(ctx, request{op: opNext, handle: handle}); err != nil {
				yield(Info{}, err)
				return
			}
		}
	}
}

// Mkdir makes a directory, and with parents those that lead to it; then that it
// is there is no error.
func (c *Client) Mkdir(ctx context.Context, name string, mode fs.FileMode, parents bool) error {
	o := opMkdir
	if parents {
		o = opMkdirAll
	}
	return c.callEmpty(ctx, request{op: o, name: name, mode: kernelMode(mode)})
}

// Rename moves a file, and replaces the file that has the name.
func (c *Client) Rename(ctx context.Context, from, to string) error {
	return c.callEmpty(ctx, request{op: opRename, name: from, to: to})
}

// Remove removes a file or an empty directory, or, with all, also the content of a
// directory; then a missing one is no error.
func (c *Client) Remove(ctx context.Context, name string, all bool) error {
	o := opRemove
	if all {
		o = opRemoveAll
	}
	return c.callEmpty(ctx, request{op: o, name: name})
}

// Symlink makes a symbolic link.
func (c *Client) Symlink(ctx context.Context, target, name string) error {
	return c.callEmpty(ctx, request{op: opSymlink, name: name, to: target})
}

// Chmod changes the mode of a file.
func (c *Client) Chmod(ctx context.Context, name string, mode fs.FileMode) error {
	return c.callEmpty(ctx, request{op: opChmod, name: name, mode: kernelMode(mode)})
}

func (c *Client) callEmpty(ctx context.Context, r request) error {
	_, err := c.call(ctx, r)
	return err
}

// A Watch tells changes below a directory.
type Watch struct {
	client *Client
	handle uint32
	events chan []Event
	stop   context.CancelFunc
	ended  sync.WaitGroup
	err    error // once events is closed

	next chan struct{} // held by the one in Next, and guards rest
	rest []Event
}

// Watch follows a directory and all below it, from its return on.
func (c *Client) Watch(ctx context.Context, name string) (*Watch, error) {
	a, err := c.call(ctx, request{op: opWatch, name: name})
	if err != nil {
		return nil, err
	}
	// As long as the watch lives, not the call.
	pumping, stop := context.WithCancel(context.Background())
	w := &Watch{client: c, handle: a.handle, events: make(chan []Event), stop: stop, next: make(chan struct{}, 1)}
	w.ended.Go(func() { w.pump(pumping) })
	return w, nil
}

// pump has one request open at a time, for any number of waiting calls.
func (w *Watch) pump(ctx context.Context) {
	defer close(w.events)
	defer w.client.release(w.handle)
	for {
		a, err := w.client.ask(ctx, request{op: opEvents, handle: w.handle}, true)
		if err != nil {
			w.err = err
			return
		}
		select {
		case w.events <- a.events:
		case <-ctx.Done():
			w.err = os.ErrClosed
			return
		}
	}
}

// Next waits for the next event. After an error of ctx it may be called again.
func (w *Watch) Next(ctx context.Context) (Event, error) {
	select {
	case w.next <- struct{}{}:
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
	defer func() { <-w.next }()
	for len(w.rest) == 0 {
		select {
		case events, ok := <-w.events:
			if !ok && errors.Is(w.err, context.Canceled) {
				return Event{}, os.ErrClosed
			}
			if !ok {
				return Event{}, w.err
			}
			w.rest = events
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
	e := w.rest[0]
	w.rest = w.rest[1:]
	return e, nil
}

// Close ends the watch and all waits for it. It is safe to call twice.
func (w *Watch) Close() error {
	w.stop()
	w.ended.Wait()
	return nil
}
