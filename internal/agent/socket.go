package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is the host's end of a SOCK_SEQPACKET pair, in the runtime's poller.
// One goroutine may receive while another sends; close is safe at any time.
type socket struct {
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
	file := os.NewFile(uintptr(fds[0]), name)
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, -1, errors.Join(err, file.Close(), unix.Close(fds[1]))
	}
	return &socket{file, raw}, fds[1], nil
}

// close is safe to call twice.
func (s *socket) close() error {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// bind has a context's end interrupt what deadline is set for, until the
// function it returns has been called. That function waits for an interruption
// under way, and clears the deadline.
func bind(ctx context.Context, deadline func(time.Time) error) (release func()) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = deadline(time.Unix(1, 0)) // fails on a closed file: nothing to interrupt
	})
	return func() {
		if !stop() {
			<-interrupted
			_ = deadline(time.Time{})
		}
	}
}

// send sends one message and descriptors with it. One send at a time: the
// caller sees to that.
func (s *socket) send(ctx context.Context, message []byte, fds []int) error {
	defer bind(ctx, s.file.SetWriteDeadline)()
	var result error
	err := s.raw.Write(func(fd uintptr) bool {
		result = s.sendmsg(fd, message, fds)
		return result != unix.EAGAIN
	})
	return outcome(ctx, err, result)
}

// trySend is send of a message alone, and an error where it would have to wait.
// It may be called at any time.
func (s *socket) trySend(message []byte) error {
	var result error
	err := s.raw.Write(func(fd uintptr) bool {
		result = s.sendmsg(fd, message, nil)
		return true
	})
	return outcome(context.Background(), err, result)
}

func (s *socket) sendmsg(fd uintptr, message []byte, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// receive waits for the next event. It returns it with the one descriptor that
// came along, or -1. Any descriptor is refused where none is wanted, and more
// than one always: the kernel has then kept them, or they are closed. io.EOF is
// the other end's closing.
func (s *socket) receive(ctx context.Context, wantFile bool) (event, int, error) {
	defer bind(ctx, s.file.SetReadDeadline)()
	var r received
	err := s.raw.Read(func(fd uintptr) bool {
		r.from(int(fd), wantFile)
		return r.err != unix.EAGAIN
	})
	if err := outcome(ctx, err, r.err); err != nil {
		return event{}, -1, err
	}
	return r.event()
}

// tryReceive is receive of an event alone, and false where there is none yet.
func (s *socket) tryReceive() (event, bool, error) {
	var r received
	err := s.raw.Read(func(fd uintptr) bool {
		r.from(int(fd), false)
		return true
	})
	if err == nil && r.err == unix.EAGAIN {
		return event{}, false, nil
	}
	if err := outcome(context.Background(), err, r.err); err != nil {
		return event{}, false, err
	}
	e, _, err := r.event()
	return e, err == nil, err
}

// received is what recvmsg(2) returned.
type received struct {
	// One byte more than an event has, to see that a longer one is longer.
	message        [eventSize + 1]byte
	rights         []byte
	n, oobn, flags int
	err            error
}

func (r *received) from(fd int, wantFile bool) {
	if wantFile && r.rights == nil {
		r.rights = make([]byte, unix.CmsgSpace(4))
	}
	// ECONNRESET is said once, before what the other end had sent until then.
	for r.err = unix.EINTR; r.err == unix.EINTR || r.err == unix.ECONNRESET; {
		r.n, r.oobn, r.flags, _, r.err = unix.Recvmsg(fd, r.message[:], r.rights,
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	}
}

// event takes what was received apart, and closes what it does not return.
func (r *received) event() (event, int, error) {
	file, err := onlyDescriptor(r.rights[:r.oobn], r.flags)
	if err != nil {
		return event{}, -1, err
	}
	if r.n == 0 {
		closeAll(file)
		return event{}, -1, io.EOF
	}
	e, err := parseEvent(r.message[:r.n])
	if err != nil {
		closeAll(file)
		return event{}, -1, fmt.Errorf("message of the sandbox's agent: %w", err)
	}
	return e, file, nil
}

// onlyDescriptor takes the descriptors out of a control message.
func onlyDescriptor(rights []byte, flags int) (int, error) {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(rights)
	for i := range messages {
		// What is no descriptor is an error, and of no interest.
		more, _ := unix.ParseUnixRights(&messages[i])
		fds = append(fds, more...)
	}
	if err != nil || flags&unix.MSG_CTRUNC != 0 || len(fds) > 1 {
		closeAll(fds...)
		return -1, errors.New("message of the sandbox's agent: descriptors that were not asked for")
	}
	if len(fds) == 0 {
		return -1, nil
	}
	return fds[0], nil
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// outcome joins what the poller and the system call said.
func outcome(ctx context.Context, poll, result error) error {
	switch {
	case errors.Is(poll, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	case poll != nil:
		// All that is left: a RawConn does not say it as os.ErrClosed itself.
		return os.ErrClosed
	case errors.Is(result, unix.EPIPE), errors.Is(result, unix.ECONNRESET):
		return io.EOF
	default:
		return result
	}
}
