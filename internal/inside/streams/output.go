package streams

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// bufferSize is the size of a pipe unless it is made larger (pipe(7)).
const bufferSize = 64 << 10

// Buffers are for reading pipes.
var Buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// PipeCapacity is the most that a pipe holds: /proc/sys/fs/pipe-max-size, of
// which only the host's root gives more.
const PipeCapacity = 1 << 20

// CopyTerminal copies from the master of a terminal, which must not block, until the end, or until the
// master's deadline has passed: then, the rest in the terminal. A caller that has closed its side has enough:
// that is no error.
func CopyTerminal(to io.Writer, master *os.File) error {
	return copyAll(to, terminalReader{master}, master, func() bool { return false })
}

// A terminalReader reads the master of a terminal. The end of a terminal is EIO.
//
// The first EIO can come before the last text: the kernel looks for text and then for the
// end, and a process can write and exit between these two steps (n_tty.c:n_tty_read()).
// After the end no more text is written, so that one more read finds all of the text.
type terminalReader struct{ master io.Reader }

func (t terminalReader) Read(b []byte) (int, error) {
	n, err := t.master.Read(b)
	if errors.Is(err, unix.EIO) {
		n, err = t.master.Read(b)
	}
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

// copyAll copies from r, which reads the file, until the end, or until the file's deadline has passed: then, the
// rest in the file, unless isOver says that nobody wants the rest.
func copyAll(to io.Writer, r io.Reader, file *os.File, isOver func() bool) error {
	err := copyUntil(to, r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = drain(to, file, isOver)
	}
	return IgnoreEnough(err)
}

// IgnoreEnough drops the error of a caller that has closed its side.
func IgnoreEnough(err error) error {
	if errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// copyUntil copies with a buffer that is used again and again, unless the writer
// can take from a file without one.
func copyUntil(to io.Writer, r io.Reader) error {
	if _, ok := to.(io.ReaderFrom); ok {
		_, err := io.Copy(to, r)
		return err
	}
	b := Buffers.Get().(*[]byte)
	defer Buffers.Put(b)
	_, err := io.CopyBuffer(to, struct{ io.Reader }{r}, *b)
	return err
}

// drain copies the present content of the pipe or terminal, and does not wait. A process
// that keeps writing does not delay drain.
func drain(to io.Writer, r *os.File, isOver func() bool) error {
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return err
	}
	b := Buffers.Get().(*[]byte)
	defer Buffers.Put(b)
	for taken, n := 0, 0; taken < PipeCapacity && !isOver(); taken += n {
		if err := raw.Read(func(fd uintptr) bool { n = readNow(int(fd), *b); return true }); err != nil {
			return err
		}
		if n == 0 { // which an io.Pipe, for one, would hand over to a reader
			return nil
		}
		if _, err := to.Write((*b)[:n]); err != nil {
			return err
		}
	}
	return nil
}

// readNow reads the present content; 0 if there is none.
func readNow(fd int, b []byte) int {
	n, _ := descriptor.Retry(func() (int, error) { return unix.Read(fd, b) })
	return max(n, 0)
}

// A Capture keeps the head and the tail of the bytes written to it, half of Limit each, and drops
// the bytes between. So the writer neither blocks nor fails.
type Capture struct {
	Limit int64

	// mu guards the fields below: a reader may be faster than the writer.
	mu    sync.Mutex
	total int64 // bytes written
	head  []byte
	tail  []byte // a ring once it is full
}

// Write never fails.
func (c *Capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := len(b)
	head, tail := c.Limit-c.Limit/2, c.Limit/2
	if room := head - int64(len(c.head)); room > 0 {
		n := min(room, int64(len(b)))
		c.head = append(c.head, b[:n]...)
		c.total += n
		b = b[n:]
	}
	for tail > 0 && len(b) > 0 {
		at := (c.total - head) % tail
		n := min(int64(len(b)), tail-at)
		if at == int64(len(c.tail)) {
			c.tail = append(c.tail, b[:n]...)
		} else {
			n = min(n, int64(len(c.tail))-at)
			copy(c.tail[at:], b[:n])
		}
		c.total += n
		b = b[n:]
	}
	c.total += int64(len(b))
	return size, nil
}

// Take returns the kept bytes, and how many are missing between head and tail. Later writes do not
// change them. Of a character in UTF-8 that was cut, no part is left.
func (c *Capture) Take() (kept []byte, omitted int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(len(c.head)) == c.total {
		return c.head, 0
	}
	head, tail := c.head, c.tail
	if c.total > c.Limit {
		head = WholeEnd(head)
		if len(tail) > 0 {
			at := (c.total - int64(len(c.head))) % int64(len(tail))
			tail = WholeStart(slices.Concat(tail[at:], tail[:at]))
		}
	}
	kept = slices.Concat(head, tail)
	return kept, c.total - int64(len(kept))
}
