package proxy

import (
	"io"
	"net"
	"testing"
	"time"
)

// newTestSession is a session with its client and its server. The proxy's ends are in the session.
func newTestSession(t *testing.T) (s *session, client, server *net.TCPConn) {
	t.Helper()
	client, toClient := pair(t, "127.0.0.1:0")
	toServer, server := pair(t, "127.0.0.1:0")
	s = newSession(toClient, toServer, time.Minute, nil)
	t.Cleanup(func() {
		server.Close()
		s.finish(net.ErrClosed)
	})
	s.startReceiving()
	return s, client, server
}

// The bound for the server's answers ends with them. A bound that fired later took the answer of the proxy away
// from the client. With a connection that had ended meanwhile, it ended the worker, and the connections of all
// sandboxes.
func TestTheBoundForAnswersEndsWithThem(t *testing.T) {
	var s *session
	var client net.Conn
	bound := 50 * time.Millisecond
	for { // on a busy machine the answers can end after the bound
		var server net.Conn
		s, client, server = newTestSession(t)
		go func() {
			_, _ = io.Copy(io.Discard, server)
			server.Close()
		}()
		begin := time.Now()
		if s.finishAnswers(bound); time.Since(begin) < bound || bound > 10*time.Second {
			break
		}
		bound *= 4
	}
	<-time.After(4 * bound)
	if _, err := io.WriteString(s.client, "reason"); err != nil {
		t.Error(err)
	}
	s.client.Close()
	if got, err := io.ReadAll(client); string(got) != "reason" || err != nil {
		t.Errorf("the client gets %q, %v", got, err)
	}
}

// A server that does not end its answers is not waited for.
func TestTheTimeForAnswersIsBounded(t *testing.T) {
	s, client, _ := newTestSession(t)
	s.finishAnswers(50 * time.Millisecond)
	wantReset(t, "the client", client)
	if !s.isTimeOut() {
		t.Error("the cause is not the time")
	}
}
