package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/sniff"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
)

// A sequel says how a connection goes on after an answer.
type sequel int

const (
	nothing    sequel = iota // the connection has failed, with an error
	noRequest                // the client must use another connection
	anyRequest               // another request may follow
	webSocket                // all bytes are copied from now on
)

// exchange sends a request of the explicit proxy, and passes on the whole answer. It says whether another
// request may follow.
func (c *connection) exchange(ctx context.Context, requests *sniff.Requests, r *sniff.Request) (goesOn bool) {
	if err := c.connectAgain(ctx, r); err != nil {
		c.answerUnreached(r, err)
		return false
	}
	next, err := c.sendAndPass(r)
	var refused *upstream.RefusedError
	switch {
	case errors.As(err, &refused):
		c.endSession()
		c.answerUnreached(r, refused)
	case errors.Is(err, errPassword):
		c.endSession()
		c.event.Decision, c.event.Reason = Failed, err.Error()
	case err != nil:
		c.endSession()
	case next == webSocket:
		c.session.startReceiving()
		c.session.copyRaw(requests.Rest())
	case next == anyRequest:
		return true
	default:
		c.endSession()
		linger(c.client)
	}
	return false
}

// refusalTime is how long the answer of an upstream proxy may take that reads no more of the request.
const refusalTime = time.Second

// sendAndPass sends a request, and passes on the answer meanwhile. After an error the client is reset, but not after the
// refusal of an upstream proxy.
func (c *connection) sendAndPass(r *sniff.Request) (sequel, error) {
	s := c.session
	var next sequel
	answered := make(chan error, 1)
	go func() {
		var err error
		next, err = s.passAnswer(r)
		var refused *upstream.RefusedError
		switch {
		case errors.As(err, &refused):
			reset(tcpSocket(s.server)) // ends the copy of the body
		case err != nil:
			s.abort(err)
		}
		answered <- err
	}()
	sent := errors.Join(c.route.sendHead(s, r), r.SendBody(s))
	if sent != nil && s.forwarder == nil {
		s.abort(sent)
	} else if sent != nil {
		defer time.AfterFunc(refusalTime, func() { s.abort(sent) }).Stop()
	}
	err := <-answered
	if sent == nil || errors.As(err, new(*upstream.RefusedError)) {
		return next, err
	}
	s.abort(sent)
	return nothing, sent
}

// connectAgain keeps a connection to the server, or to the upstream proxy, that is open and silent.
func (c *connection) connectAgain(ctx context.Context, r *sniff.Request) error {
	if c.session != nil && isSilent(c.session.server) {
		return nil
	}
	c.endSession()
	forwarder, err := c.route.forwarder(r)
	if err != nil {
		return err
	}
	var server upstream.Conn
	if forwarder != nil {
		server, err = c.route.dialProxy(ctx, forwarder)
	} else {
		server, err = c.route.dial(ctx)
	}
	if err != nil {
		return err
	}
	c.join(ctx, server)
	c.session.forwarder = forwarder
	return nil
}

// isSilent is false for a connection that has ended, or that has bytes.
func isSilent(server upstream.Conn) bool {
	if secure, isSecure := server.(*upstream.SecureConn); isSecure && secure.Buffered() > 0 {
		return false
	}
	var b [1]byte
	err := descriptor.Use(tcpSocket(server), func(fd int) error {
		_, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err
	})
	return errors.Is(err, unix.EAGAIN)
}

// passAnswer passes on the answer to one request.
func (s *session) passAnswer(r *sniff.Request) (sequel, error) {
	f := s.forwarder
	if f == nil || f.Authorization() == "" {
		return s.passAnswerTo(answerWriter{s}, r)
	}
	guard := newPasswordGuard(answerWriter{s}, f.Authorization())
	next, err := s.passAnswerTo(guard, r)
	if err != nil {
		return nothing, err
	}
	return next, guard.end()
}

func (s *session) passAnswerTo(to io.Writer, r *sniff.Request) (sequel, error) {
	from := bufio.NewReader(answerReader{s})
	for {
		head, err := readHead(from)
		if err != nil {
			return nothing, err
		}
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: r.Method})
		if err != nil {
			return nothing, err
		}
		answer.Body.Close() // the bytes after the head are copied below
		if f := s.forwarder; f != nil && answer.StatusCode == http.StatusProxyAuthRequired {
			return nothing, &upstream.RefusedError{Proxy: f.String(), Asked: "requests of plain HTTP", Status: answer.StatusCode}
		}
		if answer.StatusCode == http.StatusSwitchingProtocols && !r.IsUpgrade {
			return nothing, errors.New("the server changes the protocol without a request")
		}
		if _, err := to.Write(head); err != nil {
			return nothing, err
		}
		switch {
		case answer.StatusCode == http.StatusSwitchingProtocols:
			rest, _ := from.Peek(from.Buffered()) // never fails
			_, err := to.Write(rest)
			return webSocket, err
		case answer.StatusCode < http.StatusOK:
			continue
		}
		if guard, isGuard := to.(*passwordGuard); isGuard {
			guard.startBody(answer.StatusCode)
		}
		next, err := passBody(to, from, head, answer, r)
		if next == anyRequest && from.Buffered() > 0 {
			next = noRequest // the server has sent more than the answer
		}
		return next, err
	}
}

// passBody passes on the body of an answer, and says how the connection goes on. If the length is unclear,
// the client could take a part of the body for the next answer: such an answer is an error.
func passBody(to io.Writer, from *bufio.Reader, head []byte, answer *http.Response, r *sniff.Request) (sequel, error) {
	lengths, encodings := countField(head, "content-length"), countField(head, "transfer-encoding")
	isChunked := len(answer.TransferEncoding) == 1 && answer.TransferEncoding[0] == "chunked"
	hasBody := r.Method != http.MethodHead && answer.StatusCode != http.StatusNoContent && answer.StatusCode != http.StatusNotModified
	next := anyRequest
	if answer.Close || r.IsLast {
		next = noRequest
	}
	var err error
	switch {
	case lengths+encodings > 1 || encodings == 1 && !isChunked:
		return nothing, errors.New("the length of the server's answer is unclear")
	case !hasBody:
	case isChunked:
		err = sniff.CopyChunks(to, from)
	case lengths == 1:
		_, err = io.CopyN(to, from, answer.ContentLength)
	default: // up to the end of the connection
		next = noRequest
		_, err = io.Copy(to, from)
	}
	if err != nil {
		return nothing, fmt.Errorf("the server's answer: %w", err)
	}
	return next, nil
}

// countField counts the fields of a head that have a name.
func countField(head []byte, name string) (count int) {
	for line := range strings.Lines(string(head)) {
		if field, _, ok := strings.Cut(line, ":"); ok && strings.EqualFold(strings.TrimSpace(field), name) {
			count++
		}
	}
	return count
}

// An answerReader reads from the server until the session is idle.
type answerReader struct{ session *session }

func (r answerReader) Read(b []byte) (int, error) {
	s := r.session
	for {
		if err := s.server.SetReadDeadline(time.Now().Add(s.idle / 4)); err != nil {
			return 0, err
		}
		n, err := s.server.Read(b)
		if n > 0 {
			s.touch()
		}
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || s.isIdle() {
			return n, err
		}
	}
}

// An answerWriter writes to the client.
type answerWriter struct{ session *session }

func (w answerWriter) Write(b []byte) (int, error) {
	s := w.session
	if err := s.client.SetWriteDeadline(time.Now().Add(s.idle)); err != nil {
		return 0, err
	}
	return len(b), s.receive(b)
}
