package protocol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
)

// A service is a launcher of which only the wire is real: each call goes to the
// test's function.
type service struct {
	t     testing.TB
	hello Hello
	serve func(c *call)

	trunk *channel.Conn
	calls sync.WaitGroup
}

// A call is one that the service got.
type call struct {
	word    string
	body    []byte
	t       testing.TB
	files   []*os.File
	channel *channel.Conn
}

// requestOf is the request of a call about a sandbox.
func requestOf[Q any](c *call) (id string, request Q) {
	var a About[Q]
	if err := json.Unmarshal(c.body, &a); err != nil || a.Request == nil {
		c.t.Errorf("%s: %s: %v", c.word, c.body, err)
		return a.ID, request
	}
	return a.ID, *a.Request
}

// answer sends an answer of any operation.
func (c *call) answer(value any, files ...*os.File) { c.send(Answer[any]{Value: value}, files...) }

func (c *call) fail(err error) { c.send(Answer[any]{Error: fault.ToWire(err)}) }

func (c *call) send(a Answer[any], files ...*os.File) {
	body, err := json.Marshal(a)
	if err != nil {
		c.t.Error(err)
		return
	}
	if err := c.channel.Send(context.Background(), body, files...); err != nil {
		c.t.Logf("answer: %v", err)
	}
}

// control waits for the client's next frame; nil at its end.
func (c *call) control() *Control {
	body, _, err := c.channel.Receive(context.Background(), channel.MaxFrame)
	if err != nil {
		return nil
	}
	var ctl Control
	if err := json.Unmarshal(body, &ctl); err != nil {
		c.t.Error(err)
	}
	return &ctl
}

// start runs a service until the test's end, and returns its client's socket.
func start(t testing.TB, serve func(c *call)) (*service, *net.UnixConn) {
	t.Helper()
	return startWith(t, Hello{Protocol: Protocol}, serve)
}

func startWith(t testing.TB, hello Hello, serve func(c *call)) (*service, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, hello: hello, serve: serve}
	if s.trunk, err = channel.New(fds[0], 1); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run()
	}()
	t.Cleanup(func() {
		s.trunk.Close()
		<-done
		s.calls.Wait()
	})
	file := os.NewFile(uintptr(fds[1]), "client")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return s, conn.(*net.UnixConn)
}

func (s *service) run() {
	if err := s.trunk.Send(context.Background(), s.hello.Encode()); err != nil {
		return
	}
	if _, _, err := s.trunk.Receive(context.Background(), MaxHello); err != nil {
		return
	}
	for {
		_, files, err := s.trunk.Receive(context.Background(), 0)
		if err != nil {
			return
		}
		if len(files) != 1 {
			s.t.Errorf("a call with %d descriptors", len(files))
			return
		}
		s.calls.Go(func() { s.call(files[0]) })
	}
}

func (s *service) call(f *os.File) {
	ch, err := channel.OfFile(f, channel.MaxFiles)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer ch.Discard()
	defer ch.Close()
	body, files, err := ch.Receive(context.Background(), channel.MaxFrame)
	if err != nil {
		if !errors.Is(err, os.ErrClosed) {
			s.t.Logf("request: %v", err)
		}
		return
	}
	defer descriptor.Close(files...)
	word, request, _ := bytes.Cut(body, []byte("\n"))
	s.serve(&call{word: string(word), body: request, t: s.t, files: files, channel: ch})
}

// connect is a client of a new service.
func connect(t testing.TB, serve func(c *call)) *Client {
	t.Helper()
	_, conn := start(t, serve)
	return clientOn(t, conn)
}

func clientOn(t testing.TB, conn *net.UnixConn) *Client {
	t.Helper()
	c, err := NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
