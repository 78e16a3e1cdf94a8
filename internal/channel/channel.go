package channel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

const (
	// MaxFrame is the longest frame, in bytes without its header.
	MaxFrame = 1<<24 - 1
	// MaxFiles is how many descriptors the kernel lets go with one message
	// (net/scm.h: SCM_MAX_FD).
	MaxFiles = 253

	headerSize = 4
)

// A FrameError says which rule a frame of the other end has broken. The channel is of no
// use after it, except after a frame that was too long: see Receive.
type FrameError struct {
	Reason string
	// TooLong is the length of a frame that is longer than the receiver wants.
	TooLong int
	// Lost says that the kernel could not hand over the frame's descriptors,
	// which is this process's doing: it has too many. Frames that follow are
	// whole again.
	Lost bool
}

func (e *FrameError) Error() string { return e.Reason }

// A Conn is a channel: it sends and receives frames, with descriptors beside them, on a Unix stream
// socket. A frame is a header of four bytes, the number of descriptors and the length of
// the rest, most significant byte first; descriptors come with the header's first byte.
//
// One goroutine may receive while any number send. Close is safe at any time and ends all
// waits.
type Conn struct {
	file *os.File
	raw  syscall.RawConn

	// sending is held by the one that sends. A channel, for a context to
	// interrupt the wait for it.
	sending *semaphore.Weighted

	// in has the received bytes that were not taken yet, files the descriptors.
	in    []byte
	files []*os.File
	// maxFiles bounds files.
	maxFiles int
	// count is described at Count.
	count func(n int) error
	// lost says that descriptors came and could not be taken.
	lost bool

	closing sync.Once
}

// New takes over the descriptor of a Unix stream socket. At most maxFiles
// descriptors at a time are accepted from the other end.
func New(fd, maxFiles int) (*Conn, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return OfFile(os.NewFile(uintptr(fd), "launcher"), maxFiles)
}

// OfFile is New of a file, which it takes over. It has to be a
// socket that does not block: of any other the channel only returns errors.
func OfFile(file *os.File, maxFiles int) (*Conn, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Conn{file: file, raw: raw, sending: semaphore.NewWeighted(1), maxFiles: maxFiles}, nil
}

// OfConn is New of a connection, which it takes over.
func OfConn(conn *net.UnixConn, maxFiles int) (*Conn, error) {
	fd, err := descriptor.Duplicate(conn)
	if err := errors.Join(err, conn.Close()); err != nil {
		descriptor.CloseFD(fd)
		return nil, err
	}
	return New(fd, maxFiles)
}

// Pair makes a channel and the descriptor of its other end.
func Pair(maxFiles int) (ours *Conn, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	if ours, err = OfFile(os.NewFile(uintptr(fds[0]), "launcher"), maxFiles); err != nil {
		return nil, -1, errors.Join(err, unix.Close(fds[1]))
	}
	return ours, fds[1], nil
}

// Close closes the socket. It is safe to call twice. It does not wait for a receiver:
// Discard closes the descriptors that a receiver has not taken yet.
func (c *Conn) Close() error {
	var err error
	c.closing.Do(func() { err = c.file.Close() })
	return err
}

// HangUp ends both directions, for both ends: a receiver gets all that has come by then,
// and then the end.
func (c *Conn) HangUp() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // it may be closed
}

// Discard closes the descriptors that were received and not taken. Nobody may
// be receiving.
func (c *Conn) Discard() {
	descriptor.Close(c.files...)
	c.files, c.in = nil, nil
}

// Accept changes how many descriptors at a time are accepted, and closes those
// that came already and that no frame announced. Nobody may be receiving.
func (c *Conn) Accept(maxFiles int) {
	descriptor.Close(c.files...)
	c.files, c.maxFiles = nil, maxFiles
}

// Count calls f with the number of received descriptors before the channel keeps them. The
// frame that announces them may not be whole for a long time. If f returns an error, Receive
// closes the descriptors and returns the error. A nil f counts nothing. Nobody may be
// receiving.
func (c *Conn) Count(f func(n int) error) { c.count = f }

// Control calls f with the socket.
func (c *Conn) Control(f func(fd uintptr)) error { return c.raw.Control(f) }

// Send sends one frame. After an error of ctx the channel is of no use: a part
// of the frame may have been sent.
func (c *Conn) Send(ctx context.Context, body []byte, files ...*os.File) error {
	fds, err := descriptors(files)
	if err != nil {
		return err
	}
	err = c.SendDescriptors(ctx, body, fds)
	runtime.KeepAlive(files)
	return err
}

// SendDescriptors sends one frame with descriptors that no os.File holds. They stay the caller's.
func (c *Conn) SendDescriptors(ctx context.Context, body []byte, fds []int) error {
	if len(body) > MaxFrame || len(fds) > MaxFiles {
		return &fault.ConfigError{Reason: fmt.Sprintf("a request of %d bytes and %d files is more than a launcher takes: %d and %d",
			len(body), len(fds), MaxFrame, MaxFiles)}
	}
	frame := make([]byte, headerSize, headerSize+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(fds))<<24|uint32(len(body)))
	frame = append(frame, body...)
	if err := c.sending.Acquire(ctx, 1); err != nil {
		return err
	}
	defer c.sending.Release(1)
	defer Bind(ctx, c.file.SetWriteDeadline)()
	return c.write(ctx, frame, fds)
}

func (c *Conn) write(ctx context.Context, frame []byte, fds []int) error {
	for len(frame) > 0 {
		var n int
		var result error
		err := c.raw.Write(func(fd uintptr) bool {
			n, result = descriptor.Send(int(fd), frame, fds...)
			return result != unix.EAGAIN
		})
		if err := Outcome(ctx, err, result); err != nil {
			return err
		}
		frame, fds = frame[n:], nil
	}
	return nil
}

// Receive waits for the next frame, of at most limit bytes, and returns it with its
// descriptors, which the caller must close. io.EOF says that the other end has closed,
// also within a frame.
//
// After a *FrameError with TooLong it may be called again with a higher limit. Until then
// only the bytes that came with the header are kept.
func (c *Conn) Receive(ctx context.Context, limit int) ([]byte, []*os.File, error) {
	release := Bind(ctx, c.file.SetReadDeadline)
	defer release()
	for {
		body, files, err := c.take(limit)
		if body != nil || err != nil {
			return body, files, err
		}
		if err := c.read(ctx); err != nil {
			return nil, nil, err
		}
	}
}

// take cuts the first frame off the received bytes; nil if it is not whole yet.
func (c *Conn) take(limit int) ([]byte, []*os.File, error) {
	if len(c.in) < headerSize {
		return nil, nil, nil
	}
	header := binary.BigEndian.Uint32(c.in)
	count, length := int(header>>24), int(header&MaxFrame)
	if length > limit {
		return nil, nil, &FrameError{
			Reason:  fmt.Sprintf("a frame of %d bytes, at most %d are taken", length, limit),
			TooLong: length,
		}
	}
	if count > len(c.files) && !c.lost {
		return nil, nil, &FrameError{Reason: fmt.Sprintf("a frame that announces %d descriptors came with %d", count, len(c.files))}
	}
	if len(c.in)-headerSize < length {
		return nil, nil, nil
	}
	body := c.in[headerSize : headerSize+length : headerSize+length]
	c.in = c.in[headerSize+length:]
	if length > Chunk {
		c.in = bytes.Clone(c.in) // the channel may last, and is not to keep the frame
	}
	if count > len(c.files) {
		descriptor.Close(c.files...)
		c.files, c.lost = nil, false
		return nil, nil, &FrameError{Reason: "descriptors could not be received: too many are open", Lost: true}
	}
	files := c.files[:count:count]
	c.files = c.files[count:]
	return body, files, nil
}

// Chunk is how much is received at once. A whole request of a usual command is
// less.
const Chunk = 4 << 10

// maxRights is how many descriptors one message can have (unix(7), SCM_RIGHTS).
const maxRights = 253

// read receives the present bytes, or waits.
func (c *Conn) read(ctx context.Context) error {
	// Frames that were taken are still in use. So the rest moves to memory of its own when
	// room is short. That memory grows with the received bytes, not with the length in a
	// header.
	if cap(c.in)-len(c.in) < Chunk/4 {
		c.in = append(make([]byte, 0, max(Chunk, 2*len(c.in))), c.in...)
	}
	// There is room for all descriptors of a message. Those without room would be closed in recvmsg(2), and the close of a
	// socket with SO_LINGER can take long.
	rights := make([]byte, unix.CmsgSpace(4*maxRights))
	var n, oobn, flags int
	var result error
	err := c.raw.Read(func(fd uintptr) bool {
		for result = unix.EINTR; result == unix.EINTR; {
			n, oobn, flags, _, result = unix.Recvmsg(int(fd), c.in[len(c.in):cap(c.in)], rights,
				unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		}
		return result != unix.EAGAIN
	})
	if err := Outcome(ctx, err, result); err != nil {
		return err
	}
	fds, err := descriptor.Received(rights[:oobn])
	if err != nil {
		err = &FrameError{Reason: "a control message that is none: " + err.Error()}
	}
	for _, fd := range fds {
		c.files = append(c.files, os.NewFile(uintptr(fd), "received"))
	}
	if err == nil && len(c.files) > c.maxFiles {
		err = &FrameError{Reason: fmt.Sprintf("more than %d descriptors", c.maxFiles)}
	}
	if err == nil && len(fds) > 0 && c.count != nil {
		err = c.count(len(fds))
	}
	c.lost = c.lost || flags&unix.MSG_CTRUNC != 0
	if err != nil {
		// Nobody has counted these descriptors, so they must not stay open for long.
		descriptor.AtOnce(c.Discard)
		return err
	}
	if n == 0 {
		return io.EOF
	}
	c.in = c.in[:len(c.in)+n]
	return nil
}

// descriptors are the files' own.
func descriptors(files []*os.File) ([]int, error) {
	var fds []int
	for _, f := range files {
		err := descriptor.Use(f, func(fd int) error {
			fds = append(fds, fd)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return fds, nil
}
