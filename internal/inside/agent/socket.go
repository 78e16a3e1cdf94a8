package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// socket is the host's end of a SOCK_SEQPACKET pair. One goroutine may receive
// while another sends; close is safe at any time.
//
// It is in the runtime's poller only once somebody has to wait for it: there, a
// socket wakes a thread as it comes and whenever the other end has read, and of
// most commands nobody waits for more than one of the two sockets.
type socket struct {
	name string

	// mu guards the fields below. It is held for reading while fd is used.
	mu sync.RWMutex
	// fd is -1 once it is closed, or file's.
	fd   int
	file *os.File
	raw  syscall.RawConn
}

// newSocket makes a pair. The caller closes both ends.
func newSocket(name string) (ours *socket, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("create the pair of sockets %s: %w", name, err)
	}
	return ownSocket(fds[0], name), fds[1], nil
}

// ownSocket takes a socket that does not block.
func ownSocket(fd int, name string) *socket { return &socket{name: name, fd: fd} }

// close is safe to call twice.
func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.fd
	s.fd = -1
	if fd >= 0 {
		return os.NewSyscallError("close", unix.Close(fd))
	}
	if s.file == nil {
		return nil
	}
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// withDescriptor calls f with the socket, which does not block.
func (s *socket) withDescriptor(f func(fd uintptr)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case s.fd >= 0:
		f(uintptr(s.fd))
		return nil
	case s.file == nil:
		return os.ErrClosed
	}
	return s.raw.Control(f)
}

// polled puts the socket into the runtime's poller.
func (s *socket) polled() (*os.File, syscall.RawConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		return s.file, s.raw, nil
	}
	if s.fd < 0 {
		return nil, nil, os.ErrClosed
	}
	file := os.NewFile(uintptr(s.fd), s.name)
	s.fd, s.file = -1, file
	raw, err := file.SyscallConn()
	s.raw = raw
	return file, raw, err
}

// wait calls try until it is done, and waits before each further time, to read or to
// write.
func (s *socket) wait(ctx context.Context, try func(fd uintptr) (done bool),
	setDeadline func(*os.File, time.Time) error, until func(syscall.RawConn, func(fd uintptr) bool) error) error {
	var done bool
	if err := s.withDescriptor(func(fd uintptr) { done = try(fd) }); done || err != nil {
		return err
	}
	file, raw, err := s.polled()
	if err != nil {
		return err
	}
	defer channel.Bind(ctx, func(t time.Time) error { return setDeadline(file, t) })()
	return until(raw, try)
}

// send sends one message and descriptors with it. One send at a time: the
// caller sees to that.
func (s *socket) send(ctx context.Context, message []byte, fds []int) error {
	var result error
	err := s.wait(ctx, func(fd uintptr) bool {
		_, result = descriptor.Send(int(fd), message, fds...)
		return result != unix.EAGAIN
	}, (*os.File).SetWriteDeadline, syscall.RawConn.Write)
	return channel.Outcome(ctx, err, result)
}

// trySend is send of a message alone, and an error where it would have to wait.
// It may be called at any time.
func (s *socket) trySend(message []byte) error {
	var result error
	err := s.withDescriptor(func(fd uintptr) { _, result = descriptor.Send(int(fd), message) })
	return channel.Outcome(context.Background(), err, result)
}

// receive waits for the next event. It returns it with the one descriptor that
// came along, or -1. Any descriptor is refused where none is wanted, and more
// than one always: the kernel has then kept them, or they are closed. io.EOF is
// the other end's closing.
func (s *socket) receive(ctx context.Context, wantFile bool) (event, int, error) {
	var r receivedMessage
	if err := s.await(ctx, &r, r.message[:], wantFile); err != nil {
		return event{}, -1, err
	}
	return r.parse()
}

// expect receives an event of a kind, or the failure in its place.
func (s *socket) expect(ctx context.Context, kind eventKind) error {
	e, _, err := s.receive(ctx, false)
	switch {
	case err != nil:
		return err
	case e.kind == eventFailed:
		return &StartError{e.stage, e.errno, ""}
	case e.kind != kind:
		return fmt.Errorf("event %d out of turn", e.kind)
	}
	return nil
}

// await waits for the next message.
func (s *socket) await(ctx context.Context, r *receivedMessage, message []byte, wantFile bool) error {
	err := s.wait(ctx, func(fd uintptr) bool {
		r.receive(int(fd), message, wantFile)
		return r.err != unix.EAGAIN
	}, (*os.File).SetReadDeadline, syscall.RawConn.Read)
	return channel.Outcome(ctx, err, r.err)
}

// tryReceive is receive of an event alone, and false where there is none yet.
func (s *socket) tryReceive() (event, bool, error) {
	var r receivedMessage
	err := s.withDescriptor(func(fd uintptr) { r.receive(int(fd), r.message[:], false) })
	if err == nil && r.err == unix.EAGAIN {
		return event{}, false, nil
	}
	if err := channel.Outcome(context.Background(), err, r.err); err != nil {
		return event{}, false, err
	}
	e, _, err := r.parse()
	return e, err == nil, err
}

// receiveList waits for the answer to a request for the list.
func (s *socket) receiveList(ctx context.Context) ([]ExecID, error) {
	message := make([]byte, eventSize+maxDetached*idSize+1)
	var r receivedMessage
	if err := s.await(ctx, &r, message, false); err != nil {
		return nil, err
	}
	if _, err := onlyDescriptor(nil, r.flags); err != nil {
		return nil, err
	}
	if r.n == 0 {
		return nil, io.EOF
	}
	list, err := parseList(message[:r.n])
	if err != nil {
		return nil, fmt.Errorf("message of the sandbox's agent: %w", err)
	}
	return list, nil
}

// A receivedMessage is the result of recvmsg(2).
type receivedMessage struct {
	// One byte more than an event has, to see that a longer one is longer.
	message        [eventSize + 1]byte
	rights         []byte
	n, oobn, flags int
	err            error
}

func (r *receivedMessage) receive(fd int, message []byte, wantFile bool) {
	if wantFile && r.rights == nil {
		r.rights = make([]byte, unix.CmsgSpace(4))
	}
	r.recvmsg(fd, message)
	if r.err != nil || r.n > 0 || r.oobn > 0 {
		return
	}
	// The kernel looks for a message and then for the end. The other end may have sent and
	// closed in between, so only an end that is told twice is one.
	if r.recvmsg(fd, message); r.err == unix.EAGAIN {
		r.n, r.err = 0, nil // it was an empty message, which is as good as the end
	}
}

func (r *receivedMessage) recvmsg(fd int, message []byte) {
	// ECONNRESET is told once, before the other end's last messages.
	for r.err = unix.EINTR; r.err == unix.EINTR || r.err == unix.ECONNRESET; {
		r.n, r.oobn, r.flags, _, r.err = unix.Recvmsg(fd, message, r.rights,
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	}
}

// parse takes a received message apart, and closes the descriptors that it does not
// return.
func (r *receivedMessage) parse() (event, int, error) {
	file, err := onlyDescriptor(r.rights[:r.oobn], r.flags)
	if err != nil {
		return event{}, -1, err
	}
	if r.n == 0 {
		descriptor.CloseFD(file)
		return event{}, -1, io.EOF
	}
	e, err := parseEvent(r.message[:r.n])
	if err != nil {
		descriptor.CloseFD(file)
		return event{}, -1, fmt.Errorf("message of the sandbox's agent: %w", err)
	}
	return e, file, nil
}

// onlyDescriptor takes the descriptors out of a control message.
func onlyDescriptor(rights []byte, flags int) (int, error) {
	fds, err := descriptor.Received(rights)
	if err != nil || flags&unix.MSG_CTRUNC != 0 || len(fds) > 1 {
		descriptor.CloseFD(fds...)
		return -1, errors.New("message of the sandbox's agent: descriptors that were not asked for")
	}
	if len(fds) == 0 {
		return -1, nil
	}
	return fds[0], nil
}
