package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A call is one request of a client, on a socket of its own.
type call struct {
	*trunk
	channel *channel.Conn
	// word is that of the operation, and id the sandbox's if the operation is on one.
	word, id string
	// files came with the request. The permissions of some operations pair them with paths (opened), or with the standard
	// files of a command (stdio). held is how many descriptors the call counts for its peer.
	files  []*os.File
	opened map[string]*os.File
	stdio  [3]*os.File
	held   int
	// long says that the call holds a place of peer.long.
	long bool

	// gone is closed when nothing more can come from the client.
	gone chan struct{}
	// making says that the call makes a sandbox, and joining that the writes of its transaction join.
	making, joining atomic.Bool

	// mu guards the fields below. It is held while a control is carried out, so that controls
	// keep their order.
	mu sync.Mutex
	// control carries out the client's later frames. As long as it is nil, they wait in pending.
	pending []protocol.Control
	control func(protocol.Control)
}

// enter counts the call against the bounds of its peer.
func (c *call) enter() error {
	if err := c.peer.takeCall(); err != nil {
		return err
	}
	if err := c.peer.takeDescriptors(1); err != nil {
		c.peer.leaveCall()
		return err
	}
	c.held = 1
	if err := c.server.beginCall(); err != nil {
		c.leavePeer()
		return err
	}
	return nil
}

func (c *call) leavePeer() {
	c.peer.leaveDescriptors(c.held)
	c.peer.leaveCall()
}

// refuse answers a call that is not served. If the client does not read, refuse waits for a second
// and delays only this client's connection.
func (c *call) refuse(err error) {
	defer c.channel.Close()
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	_ = c.channel.Send(ctx, encodeError(err))
}

const (
	// requestTime bounds how long a client may take to send its request.
	requestTime = 10 * time.Second
	// deliverTime bounds how long a client may take to read an answer that occupies memory or
	// files of the launcher.
	deliverTime = 30 * time.Second
	// smallRequest and smallAnswer are the sizes up to which a request and an answer need no
	// place of the gates, in bytes.
	smallRequest = 64 << 10
	smallAnswer  = 64 << 10
	// maxControl bounds the size of the later frames, and maxPending their number while they
	// wait.
	maxControl = 4 << 10
	maxPending = 64
)

// serve carries out the call.
func (c *call) serve() {
	defer c.server.endCall()
	defer c.leavePeer()
	defer c.doneWithRequest()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer func() {
		c.channel.Close()
		c.channel.Discard()
	}()
	// The end of the trunk ends each wait for the client.
	defer context.AfterFunc(ctx, c.hangUp)()
	defer func() { descriptor.Close(c.files...) }()
	carryOut, err := c.read()
	if err != nil {
		c.answerError(err)
		return
	}
	c.gone = make(chan struct{})
	go func() {
		defer close(c.gone)
		defer cancel()
		defer c.recover()
		c.listen()
	}()
	c.carryOut(ctx, carryOut)
	c.channel.Close()
	<-c.gone
}

// lastWord is how long after the connection's end the launcher waits for a client's message that
// it keeps the new sandbox.
const lastWord = time.Second

// hangUp ends the call's socket when its context has ended.
func (c *call) hangUp() {
	if c.joining.Load() {
		return // the client gets the Result; serveCommand closes the socket after the join
	}
	if c.making.Load() {
		// The client's message may be in the socket, not yet read: do not lose it.
		time.AfterFunc(lastWord, c.channel.HangUp)
		return
	}
	c.channel.Close()
}

// read reads the request. The returned function carries the request out.
func (c *call) read() (func(context.Context) error, error) {
	late := time.AfterFunc(requestTime, func() { c.channel.Close() })
	defer late.Stop()
	c.channel.Count(c.countDescriptors)
	defer c.channel.Count(nil)
	body, files, err := c.channel.Receive(context.Background(), smallRequest)
	var frame *channel.FrameError
	if errors.As(err, &frame) && frame.TooLong > 0 && frame.TooLong <= protocol.MaxRequest {
		late.Stop()
		if err := c.peer.long.Acquire(c.ctx, 1); err != nil {
			return nil, err
		}
		c.long = true
		late.Reset(requestTime)
		body, files, err = c.channel.Receive(context.Background(), protocol.MaxRequest)
	}
	if errors.As(err, &frame) && frame.TooLong > 0 {
		return nil, &fault.ConfigError{Reason: fmt.Sprintf("a request of %d bytes is more than a launcher takes: %d", frame.TooLong, protocol.MaxRequest)}
	}
	if err != nil {
		return nil, err
	}
	c.files = files
	c.channel.Accept(0)
	return c.begin(body)
}

// countDescriptors counts descriptors that have come from the client.
func (c *call) countDescriptors(n int) error {
	if err := c.peer.takeDescriptors(n); err != nil {
		return err
	}
	c.held += n
	return nil
}

// doneWithRequest gives the place of a long request back, since a call can last as long as a command. The caller drops
// the request itself. It may be called again.
func (c *call) doneWithRequest() {
	c.opened = nil
	if c.long {
		c.long = false
		c.peer.long.Release(1)
	}
}

// listen reads the client's later frames until its end.
func (c *call) listen() {
	for {
		body, _, err := c.channel.Receive(context.Background(), maxControl)
		if err != nil {
			return
		}
		var control protocol.Control
		if err := json.Unmarshal(body, &control); err != nil {
			return
		}
		if !c.handle(control) {
			return
		}
	}
}

// handle carries out a control, or keeps it for later. It returns false if too many controls wait.
func (c *call) handle(control protocol.Control) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.recover()
	if c.control != nil {
		c.control(control)
		return true
	}
	c.pending = append(c.pending, control)
	return len(c.pending) <= maxPending
}

// takeControls carries out the waiting controls with f, and later controls, too.
func (c *call) takeControls(f func(protocol.Control)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, control := range c.pending {
		f(control)
	}
	c.pending, c.control = nil, f
}

// recover ends a panic of this call, so that other calls go on.
func (c *call) recover() {
	p := recover()
	if p == nil {
		return
	}
	c.server.log.Error("a call has panicked", "op", c.word, "id", c.id,
		"uid", c.peer.uid, "panic", p, "stack", string(debug.Stack()))
	c.answerError(fmt.Errorf("%s: the launcher has a defect: %v; see the launcher's log", c.word, p))
}

// carryOut carries out the request. It answers with the error, if there is one.
func (c *call) carryOut(ctx context.Context, f func(context.Context) error) {
	defer c.recover()
	err := f(ctx)
	if err != nil && errors.Is(err, context.Canceled) && c.server.draining.Err() != nil {
		err = errEnding
	}
	if err != nil {
		c.answerError(err)
	}
}

// withSandbox calls f with the sandbox of the request open.
func (c *call) withSandbox(ctx context.Context, f func(Sandbox) error) error {
	return c.server.handles.withSandbox(ctx, c.id, c.checkedOwner(f))
}

// networkLog sends the events of the proxied network. To follow is to go on until the client disconnects or the
// sandbox is removed.
func networkLog(ctx context.Context, to answers[*spec.NetworkEvent], follows *bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(to.server.draining, cancel)()
	var events iter.Seq2[spec.NetworkEvent, error]
	err := to.withSandbox(ctx, func(box Sandbox) error {
		events = box.NetworkEvents(ctx, *follows)
		return nil
	})
	if err != nil {
		return err
	}
	for event, err := range events {
		if err == nil {
			err = to.deliver(ctx, &event)
		}
		if err != nil {
			return err
		}
	}
	to.answer(nil)
	return nil
}

// checkVisible refuses a sandbox of another user, as if it did not exist. It notes the id.
func (c *call) checkVisible(ctx context.Context, id string) error {
	if !isID(id) {
		return &fault.SandboxError{ID: fmt.Sprintf("%.64q", id), Err: fault.ErrNotFound}
	}
	c.id = id
	if c.peer.all {
		return nil
	}
	i, err := c.describe(ctx, id)
	if err != nil {
		return err
	}
	if !c.peer.sees(i) {
		return &fault.SandboxError{ID: id, Err: fault.ErrNotFound}
	}
	return nil
}

// describe describes a sandbox.
func (c *call) describe(ctx context.Context, id string) (spec.Info, error) {
	if err := c.peer.reads.Acquire(ctx, 1); err != nil {
		return spec.Info{}, err
	}
	defer c.peer.reads.Release(1)
	return c.server.core.Info(ctx, id)
}

// checkedOwner wraps f with a check of the sandbox's owner. After checkVisible another sandbox can have got the
// name, and f would reach the other sandbox.
func (c *call) checkedOwner(f func(Sandbox) error) func(Sandbox) error {
	return func(box Sandbox) error {
		if !c.peer.owns(box.Owner()) {
			return &fault.SandboxError{ID: box.ID(), Err: fault.ErrNotFound}
		}
		return f(box)
	}
}

const idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+-."

// isID says whether s can be an id at all: it is no path and not long. Each launcher has stricter
// rules for the names of new sandboxes.
func isID(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 255 && strings.Trim(s, idLetters) == ""
}

func list(ctx context.Context, c *call, _ protocol.None) ([]spec.Info, error) {
	seen, err := c.server.core.List(ctx, c.peer.owns)
	if err != nil && seen != nil {
		c.log().Error("list the sandboxes", "error", err)
		err = nil
	}
	return seen, err
}

func info(ctx context.Context, c *call, _ protocol.None) (spec.Info, error) {
	i, err := c.server.core.Info(ctx, c.id)
	if err == nil && !c.peer.sees(i) { // the sandbox has got another owner since checkVisible
		err = &fault.SandboxError{ID: c.id, Err: fault.ErrNotFound}
	}
	return i, err
}

func execs(ctx context.Context, c *call, _ protocol.None) (all []spec.ExecInfo, err error) {
	err = c.withSandbox(ctx, func(box Sandbox) (err error) {
		all, err = box.Execs(ctx)
		return err
	})
	return all, err
}

func allowUpdate(_ context.Context, c *call, l *spec.Limits) error {
	return c.peer.allowLimits(l, false)
}

func allowNetwork(_ context.Context, c *call, n *protocol.NetworkRequest) (err error) {
	if n.Named, err = c.peer.allowGrant(n.Grant); err == nil {
		n.Upstream, err = c.peer.setUpstream(n.Grant, n.Upstream)
	}
	return err
}
