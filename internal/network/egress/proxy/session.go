package proxy

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
)

const (
	// chunk is how much is copied before the counters know, in bytes.
	chunk = 1 << 20
	// meteredChunk is the chunk of a sandbox whose bytes are bounded.
	meteredChunk = 64 << 10
	// lull is the time after which they know in any case.
	lull = 100 * time.Millisecond
)

// A session is a client and its server, from the connection to the server on. One goroutine copies
// from the server to the client, and the connection's own goroutine copies to the server.
type session struct {
	client *net.TCPConn
	server upstream.Conn
	// forwarder is the upstream proxy that gets requests with whole URLs. Nil: the other end is the server.
	forwarder      *upstream.Proxy
	idle           time.Duration
	meter          func() error // that of the Sandbox
	sent, received atomic.Int64
	active         atomic.Int64  // when a byte was last copied, in nanoseconds of Unix time
	isHeld         atomic.Bool   // the proxy itself has something to say to the client at the server's end
	isPaused       atomic.Bool   // the copy from the server ends at the next byte
	copied         chan struct{} // closed when the copy from the server has ended; nil before its start

	once  sync.Once
	cause error // of a reset; written under once
}

func newSession(client *net.TCPConn, server upstream.Conn, idle time.Duration, meter func() error) *session {
	s := &session{client: client, server: server, idle: idle, meter: meter}
	s.touch()
	return s
}

func (s *session) touch() { s.active.Store(time.Now().UnixNano()) }

// count counts copied bytes. It returns the error of the meter.
func (s *session) count(counter *atomic.Int64, n int64) error {
	if n == 0 {
		return nil
	}
	counter.Add(n)
	s.touch()
	if s.meter == nil {
		return nil
	}
	return s.meter()
}

func (s *session) isIdle() bool { return time.Since(time.Unix(0, s.active.Load())) >= s.idle }

// startReceiving starts the copy from the server to the client. The caller calls finish later.
func (s *session) startReceiving() {
	s.copied = make(chan struct{})
	go func() {
		defer close(s.copied)
		err := s.copy(s.client, s.server, &s.received)
		if err == nil && !s.isHeld.Load() {
			err = s.client.CloseWrite()
		}
		if err != nil && !errors.Is(err, errPaused) {
			s.abort(err)
		}
	}()
}

var errPaused = errors.New("paused")

// pauseReceiving ends the copy from the server. It can be started again.
func (s *session) pauseReceiving() error {
	s.isPaused.Store(true)
	err := s.server.SetReadDeadline(time.Now())
	<-s.copied
	s.isPaused.Store(false)
	return err
}

// send copies from the client to the server, and passes on the end.
func (s *session) send() error {
	if err := s.copy(s.server, s.client, &s.sent); err != nil {
		return err
	}
	return s.server.CloseWrite()
}

// finish waits until the server has ended, too. An error ends both connections at once.
func (s *session) finish(err error) {
	if err != nil {
		s.abort(err)
	}
	if s.copied != nil {
		<-s.copied
	}
	_ = s.server.Close() // both directions have ended
}

// finishAnswers waits until the server has ended its answers, for a time. The client stays open then for an
// answer of the proxy itself.
func (s *session) finishAnswers(most time.Duration) {
	s.isHeld.Store(true)
	late := time.AfterFunc(most, func() { s.abort(os.ErrDeadlineExceeded) })
	defer late.Stop()         // the client may need longer than the server
	_ = s.server.CloseWrite() // the server may have ended
	s.finish(nil)
}

// abort resets both connections. The first error is the cause.
func (s *session) abort(err error) {
	s.once.Do(func() { s.cause = err })
	reset(s.client)
	reset(tcpSocket(s.server))
}

// isTimeOut is true if the session ended because it was idle.
func (s *session) isTimeOut() bool {
	s.once.Do(func() {}) // orders the read after the write
	return errors.Is(s.cause, os.ErrDeadlineExceeded)
}

// copy ends without an error at the end of from. The kernel copies by splice(2), for which a TCPConn
// takes a pipe: two open files and some memory. A silent connection has none, as copy waits for bytes
// first, and gives the pipe back after a lull.
func (s *session) copy(to, from upstream.Conn, count *atomic.Int64) error {
	most := int64(chunk)
	if s.meter != nil {
		most = meteredChunk
	}
	for {
		if err := s.wait(from); err != nil {
			return err
		}
		start := time.Now()
		err := errors.Join(from.SetReadDeadline(start.Add(lull)), to.SetWriteDeadline(start.Add(s.idle)))
		if err != nil {
			return err
		}
		n, err := io.Copy(to, &io.LimitedReader{R: from, N: most})
		if spent := s.count(count, n); spent != nil {
			return spent
		}
		switch {
		case err == nil && n < most:
			return nil
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded), time.Since(start) >= s.idle:
			return err
		}
	}
}

// wait waits until a read does not block.
func (s *session) wait(from upstream.Conn) error {
	ready, err := readiness(from)
	if err != nil {
		return err
	}
	for {
		if err := from.SetReadDeadline(time.Now().Add(s.idle / 4)); err != nil {
			return err
		}
		if s.isPaused.Load() && from == s.server {
			return errPaused
		}
		err := ready()
		if !errors.Is(err, os.ErrDeadlineExceeded) || s.isIdle() {
			return err
		}
	}
}

// readiness returns a function that waits until a read does not block, or until the deadline.
func readiness(from upstream.Conn) (func() error, error) {
	if c, isSecure := from.(*upstream.SecureConn); isSecure {
		return func() error {
			if err := c.Wait(); !errors.Is(err, io.EOF) {
				return err
			}
			return nil // the read tells the end
		}, nil
	}
	raw, err := tcpSocket(from).SyscallConn()
	if err != nil {
		return nil, err
	}
	var b [1]byte
	return func() error {
		return raw.Read(func(fd uintptr) bool {
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return err != unix.EAGAIN && err != unix.EINTR
		})
	}, nil
}

// tcpSocket is the socket of a connection.
func tcpSocket(c upstream.Conn) *net.TCPConn {
	if secure, isSecure := c.(*upstream.SecureConn); isSecure {
		return secure.TCP()
	}
	return c.(*net.TCPConn) //nolint:forcetypeassert // there is no third kind
}

// Write writes to the server.
func (s *session) Write(b []byte) (int, error) {
	if err := s.server.SetWriteDeadline(time.Now().Add(s.idle)); err != nil {
		return 0, err
	}
	n, err := s.server.Write(b)
	return n, cmp.Or(s.count(&s.sent, int64(n)), err)
}

// receive passes bytes of the server on to the client.
func (s *session) receive(b []byte) error {
	n, err := s.client.Write(b)
	return cmp.Or(s.count(&s.received, int64(n)), err)
}

// copyRaw copies both directions to their end, without a look at the bytes. The client has sent the first bytes already.
func (s *session) copyRaw(first []byte) {
	_, err := s.Write(first)
	if err == nil {
		err = s.send()
	}
	s.finish(err)
}

// setBuffers bounds the bytes that the kernel keeps for a connection. No limit of the sandbox counts them.
func setBuffers(c *net.TCPConn, size int) {
	if size > 0 {
		_ = c.SetReadBuffer(size)  // a closed connection needs no buffer
		_ = c.SetWriteBuffer(size) // as above
	}
}

// reset closes a connection so that the other end gets an error. It may be called again.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // a closed connection needs no reset
	_ = c.Close()      // as above
}
