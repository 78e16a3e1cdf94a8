package launcher

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A command gets pipes that belong to it, never the caller's own descriptors:
// from a terminal's it could read what the user types, and from any it could
// reopen the file behind it through /proc/self/fd.

// stdio is the caller's side of a command's standard streams.
type stdio struct {
	inside  [3]*os.File // what the command gets
	copying sync.WaitGroup
	stdin   *os.File // the writing end, where there is one
	errs    [3]error
}

// Streams are what a command reads and where its output goes; nil is
// /dev/null. Stdin is read by a goroutine that may outlive the command by one
// Read.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// openStdio makes the pipes, owned by the given host ids, and starts copying.
func openStdio(s Streams, uid, gid int) (_ *stdio, err error) {
	p := &stdio{}
	defer func() {
		if err != nil {
			p.closeInside()
			err = errors.Join(err, p.wait())
		}
	}()
	if err := p.input(s.Stdin, uid, gid); err != nil {
		return nil, err
	}
	if err := p.output(1, s.Stdout, uid, gid); err != nil {
		return nil, err
	}
	if err := p.output(2, s.Stderr, uid, gid); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *stdio) input(src io.Reader, uid, gid int) error {
	if src == nil {
		return p.null(0, os.O_RDONLY)
	}
	r, w, err := ownedPipe(uid, gid)
	if err != nil {
		return err
	}
	p.inside[0], p.stdin = r, w
	go func() {
		io.Copy(w, src) // the command may stop reading at any time
		w.Close()
	}()
	return nil
}

func (p *stdio) output(i int, dst io.Writer, uid, gid int) error {
	if dst == nil {
		return p.null(i, os.O_WRONLY)
	}
	r, w, err := ownedPipe(uid, gid)
	if err != nil {
		return err
	}
	p.inside[i] = w
	p.copying.Go(func() {
		_, p.errs[i] = io.Copy(dst, r)
		r.Close() // a caller that takes no more: the command gets SIGPIPE
	})
	return nil
}

// joinTerminal copies between the caller's streams and the master of a
// command's terminal, which stays its owner's to close.
func joinTerminal(s Streams, master *os.File) *stdio {
	p := &stdio{}
	if s.Stdin != nil {
		go io.Copy(master, s.Stdin) // until the command ends
	}
	if s.Stdout == nil {
		s.Stdout = io.Discard
	}
	p.copying.Go(func() {
		_, err := io.Copy(s.Stdout, master)
		// The kernel's word for the end of a terminal, tty_io.c:tty_read().
		if !errors.Is(err, unix.EIO) {
			p.errs[1] = err
		}
	})
	return p
}

func (p *stdio) null(i, flag int) (err error) {
	p.inside[i], err = os.OpenFile(os.DevNull, flag, 0)
	return err
}

// ownedPipe is a pipe whose ends the command can open again by name, as a
// shell does with /dev/stdout.
func ownedPipe(uid, gid int) (r, w *os.File, err error) {
	r, w, err = os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	if err := w.Chown(uid, gid); err != nil {
		return nil, nil, errors.Join(err, r.Close(), w.Close())
	}
	return r, w, nil
}

// closeInside closes what the command has its own copies of by now.
func (p *stdio) closeInside() {
	for _, f := range p.inside {
		if f != nil {
			f.Close()
		}
	}
}

// wait returns when all output has arrived, which needs every process that
// holds an end to be gone, with what went wrong on the caller's side.
func (p *stdio) wait() error {
	p.copying.Wait()
	if p.stdin != nil {
		p.stdin.Close()
	}
	return errors.Join(p.errs[:]...)
}

// A capture keeps the first bytes written to it and drops the rest, so that
// the writer neither blocks nor fails.
type capture struct {
	limit     int
	kept      []byte
	truncated bool
}

func (c *capture) Write(b []byte) (int, error) {
	room := min(len(b), c.limit-len(c.kept))
	c.kept = append(c.kept, b[:room]...)
	c.truncated = c.truncated || room < len(b)
	return len(b), nil
}
