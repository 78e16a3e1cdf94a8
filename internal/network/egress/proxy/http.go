package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/sniff"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

const (
	// answerTime is how long the client has to read an answer of the proxy itself.
	answerTime = 5 * time.Second
	// lastTime is how long the server has to end its answers before an answer of the proxy itself.
	lastTime = 10 * time.Second
	// maxHead bounds the head of a server's answer, in bytes.
	maxHead = 64 << 10
)

// serveRequests judges each request of the connection, and sends on the allowed ones. Answers are
// copied as they are.
func (c *connection) serveRequests(ctx context.Context, o sniff.Opening) {
	requests := sniff.NewRequests(o, c.client, c.idle)
	for isFirst := true; ; isFirst = false {
		r, err := requests.Next()
		for errors.Is(err, os.ErrDeadlineExceeded) && c.session != nil && !c.session.isIdle() {
			r, err = requests.Next() // the server is still busy with its answer
		}
		if errors.Is(err, io.EOF) && !isFirst && c.session.forwarder != nil {
			c.endSession() // each answer is complete
			return
		}
		if errors.Is(err, io.EOF) && !isFirst {
			c.session.finish(c.session.server.CloseWrite())
			return
		}
		if err == nil {
			err = c.judge(ctx, r, isFirst)
		}
		if err != nil {
			c.refuse(r, err)
			return
		}
		if c.isExchanged(r) {
			if goesOn := c.exchange(ctx, requests, r); !goesOn {
				return
			}
			continue
		}
		if err := c.connect(ctx); err != nil {
			c.answerUnreached(r, err)
			return
		}
		if r.IsUpgrade {
			isUpgraded, err := c.session.upgrade(r)
			switch {
			case err != nil:
				c.session.finish(err)
				return
			case isUpgraded:
				c.session.copyRaw(requests.Rest())
				return
			}
			continue
		}
		if err := errors.Join(r.SendHead(c.session), r.SendBody(c.session)); err != nil {
			c.session.finish(err)
			return
		}
	}
}

// judge returns a *deniedError for a request that is not for the name, or not allowed.
func (c *connection) judge(ctx context.Context, r *sniff.Request, isFirst bool) error {
	name, port := c.event.Name, c.event.Port
	v := c.box.Rules.Request(name, port, r.Method, r.Path)
	switch {
	case !c.box.matchesHost(r.Host, name):
		return denied(rules.Verdict{Rule: v.Rule, Reason: fmt.Sprintf("the request is for the host %.255q at an address of %s", r.Host, name)})
	case r.Port != 0 && r.Port != port:
		return denied(rules.Verdict{Rule: v.Rule, Reason: fmt.Sprintf("the request is for port %d at port %d of %s", r.Port, port, name)})
	case r.IsUpgrade && !isFirst:
		return denied(rules.Verdict{Rule: v.Rule, Reason: "a request for WebSocket needs a connection of its own"})
	}
	v = c.askEmbedder(ctx, v, r.Method, r.Path)
	if v.Allowed && r.IsUpgrade { // no rule judges the bytes after the request
		v = c.askEmbedder(ctx, c.box.Rules.Connect(name, port), "", "")
	}
	if !v.Allowed {
		return denied(v)
	}
	c.allow(v)
	return nil
}

// refuse tells the client why, after the answers to earlier requests.
func (c *connection) refuse(r *sniff.Request, err error) {
	var refused *deniedError
	var malformed *sniff.MalformedError
	status := http.StatusForbidden
	var told string
	switch {
	case errors.As(err, &refused):
		c.event.Rule, told = refused.rule, refused.told
	case errors.As(err, &malformed):
		status, told = http.StatusBadRequest, malformed.Reason
	default:
		c.fail(err)
		return
	}
	c.event.Decision, c.event.Reason = Denied, err.Error()
	if c.session != nil {
		c.session.finishAnswers(lastTime)
	}
	writeAnswer(c.client, r, status, told)
}

// answerUnreached tells the client that the server was not reached.
func (c *connection) answerUnreached(r *sniff.Request, err error) {
	if errors.As(err, new(*deniedError)) {
		c.refuse(r, err)
		return
	}
	c.noteUnreached(err)
	status, told := c.route.missAnswer(err)
	writeAnswer(c.client, r, status, told)
}

// writeAnswer writes an answer of the proxy itself, and ends the connection. The client may still be
// sending: a reset would take the answer away from it. Clients show no body of an answer to CONNECT, and
// apt shows no body at all, but many clients show the status line.
func writeAnswer(client *net.TCPConn, r *sniff.Request, status int, reason string) {
	body := "sandbox-runtime: " + reason + "\n"
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", status, visible(reason), len(body))
	if r == nil || r.Method != http.MethodHead {
		b.WriteString(body)
	}
	if client.SetDeadline(time.Now().Add(answerTime)) != nil {
		return // the connection has ended
	}
	if _, err := client.Write(b.Bytes()); err == nil {
		linger(client)
	}
}

// visible replaces the characters that a status line cannot have.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
}

// linger ends a connection whose client may still be sending.
func linger(client *net.TCPConn) {
	if client.SetReadDeadline(time.Now().Add(answerTime)) == nil && client.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, client, 1<<20) // the client may send no more
	}
}

// upgrade sends a request for WebSocket, and passes on the head of the answer. The server agrees with
// the status 101. The copy from the server runs again after that.
func (s *session) upgrade(r *sniff.Request) (isUpgraded bool, err error) {
	if err := s.pauseReceiving(); err != nil {
		return false, err
	}
	if s.received.Load() > 0 {
		return false, errors.New("the server spoke before the request")
	}
	if err := errors.Join(r.SendHead(s), s.server.SetReadDeadline(time.Now().Add(s.idle)), s.client.SetWriteDeadline(time.Now().Add(s.idle))); err != nil {
		return false, err
	}
	from := bufio.NewReader(s.server)
	status := http.StatusContinue
	for status < http.StatusOK && status != http.StatusSwitchingProtocols {
		head, err := readHead(from)
		if err != nil {
			return false, err
		}
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
		if err != nil {
			return false, err
		}
		status = answer.StatusCode
		answer.Body.Close() // the bytes after the head are copied as they are
		if err := s.receive(head); err != nil {
			return false, err
		}
	}
	rest, _ := from.Peek(from.Buffered()) // never fails
	if err := s.receive(rest); err != nil {
		return false, err
	}
	s.startReceiving()
	return status == http.StatusSwitchingProtocols, nil
}

func readHead(r *bufio.Reader) ([]byte, error) {
	var head []byte
	for {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		switch {
		case len(head) > maxHead:
			return nil, fmt.Errorf("the head of the server's answer has more than %d bytes", maxHead)
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case err == nil && len(bytes.Trim(line, "\r\n")) == 0:
			return head, nil
		}
	}
}
