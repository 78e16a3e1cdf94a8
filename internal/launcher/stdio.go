package launcher

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A command gets pipes that belong to it, never the caller's own descriptors:
// from a terminal's it could read what the user types, and from any it could
// reopen the file behind it through /proc/self/fd.

// stdio is the caller's side of a command's standard streams.
type stdio struct {
	inside  [3]*os.File // what the command gets
	stdin   *os.File    // the writing end, where there is one
	outputs []*os.File  // the reading ends
	copying sync.WaitGroup
	errs    [3]error
}

// errNotTaken says that the caller did not take the output in time.
var errNotTaken = errors.New("output that the caller did not take was dropped")

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
			err = errors.Join(err, p.wait(context.Background()))
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
	p.outputs = append(p.outputs, r)
	p.copying.Go(func() {
		p.errs[i] = copyOutput(dst, r)
		r.Close() // a caller that takes no more: the command gets SIGPIPE
	})
	return nil
}

// pipeCapacity is the most that a pipe holds: /proc/sys/fs/pipe-max-size, of
// which only the host's root gives more.
const pipeCapacity = 1 << 20

// copyOutput copies until the end, or until the reading end's deadline has
// passed: then, what is left in the pipe. That the caller closed its side is
// its way of having had enough, and no error.
func copyOutput(dst io.Writer, r *os.File) error {
	_, err := io.Copy(dst, r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = drain(dst, r)
	}
	if errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// drain copies what is in the pipe already, and waits for nothing.
func drain(dst io.Writer, r *os.File) error {
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, pipeCapacity)
	filled := 0
	err = raw.Read(func(fd uintptr) bool {
		for filled < len(buffer) {
			n, err := unix.Read(int(fd), buffer[filled:])
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				break
			}
			filled += n
		}
		return true
	})
	_, writeErr := dst.Write(buffer[:filled])
	return errors.Join(err, writeErr)
}

// joinTerminal copies between the caller's streams and the master of a
// command's terminal, which stays its owner's to close.
func joinTerminal(s Streams, master *os.File) *stdio {
	p := &stdio{outputs: []*os.File{master}}
	if s.Stdin != nil {
		go io.Copy(master, s.Stdin) // until the command ends
	}
	if s.Stdout == nil {
		s.Stdout = io.Discard
	}
	p.copying.Go(func() {
		err := copyOutput(s.Stdout, master)
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

// wait returns when all output has been taken, with what went wrong on the
// caller's side, or with errNotTaken when ctx is done first. The command's
// processes are gone by now: whoever else was handed an end of a pipe is not
// waited for.
func (p *stdio) wait(ctx context.Context) error {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, r := range p.outputs {
		r.SetReadDeadline(time.Now()) //nolint:errcheck // closed: its end was reached
	}
	taken := make(chan struct{})
	go func() { // outlives the call if the caller never takes anything
		p.copying.Wait()
		close(taken)
	}()
	select {
	case <-taken:
		return errors.Join(p.errs[:]...)
	case <-ctx.Done():
		return errNotTaken
	}
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
