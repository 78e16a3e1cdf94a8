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
	request protocol.Request
	// files came with the request. held is how many descriptors the call counts for its peer.
	files []*os.File
	held  int
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
	body, err := json.Marshal(&protocol.Answer{Error: fault.ToWire(err)})
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	_ = c.channel.Send(ctx, body)
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
	if err := c.read(); err != nil {
		c.answer(&protocol.Answer{Error: fault.ToWire(err)})
		return
	}
	defer func() { descriptor.Close(c.files...) }()
	c.gone = make(chan struct{})
	go func() {
		defer close(c.gone)
		defer cancel()
		defer c.recover()
		c.listen()
	}()
	c.carryOut(ctx)
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

// read reads the request.
func (c *call) read() error {
	late := time.AfterFunc(requestTime, func() { c.channel.Close() })
	defer late.Stop()
	c.channel.Count(c.countDescriptors)
	defer c.channel.Count(nil)
	body, files, err := c.channel.Receive(context.Background(), smallRequest)
	var frame *channel.FrameError
	if errors.As(err, &frame) && frame.TooLong > 0 && frame.TooLong <= protocol.MaxRequest {
		late.Stop()
		if err := c.peer.long.Acquire(c.ctx, 1); err != nil {
			return err
		}
		c.long = true
		late.Reset(requestTime)
		body, files, err = c.channel.Receive(context.Background(), protocol.MaxRequest)
	}
	if errors.As(err, &frame) && frame.TooLong > 0 {
		return &fault.ConfigError{Reason: fmt.Sprintf("a request of %d bytes is more than a launcher takes: %d", frame.TooLong, protocol.MaxRequest)}
	}
	if err != nil {
		return err
	}
	c.files = files
	c.channel.Accept(0)
	if err := decode(body, &c.request); err != nil {
		descriptor.Close(files...)
		return err
	}
	return nil
}

// countDescriptors counts descriptors that have come from the client.
func (c *call) countDescriptors(n int) error {
	if err := c.peer.takeDescriptors(n); err != nil {
		return err
	}
	c.held += n
	return nil
}

func decode(body []byte, r *protocol.Request) error {
	if err := protocol.CheckValues(body, protocol.MaxValues); err != nil {
		return err
	}
	if err := json.Unmarshal(body, r); err != nil {
		return &fault.ConfigError{Reason: "request: " + err.Error()}
	}
	return nil
}

// doneWithRequest frees the memory of the request, since a call can last as long as a command. It
// may be called again.
func (c *call) doneWithRequest() {
	c.request.Create, c.request.Command, c.request.Paths, c.request.Stamps, c.request.Image = nil, nil, nil, nil, nil
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
	c.server.log.Error("a call has panicked", "op", c.request.Op, "id", c.request.ID,
		"uid", c.peer.uid, "panic", p, "stack", string(debug.Stack()))
	c.answer(&protocol.Answer{Error: fault.ToWire(
		fmt.Errorf("%s: the launcher has a defect: %v; see the launcher's log", c.request.Op, p))})
}

// carryOut carries out the request and answers.
func (c *call) carryOut(ctx context.Context) {
	defer c.recover()
	a, err := c.dispatch(ctx)
	if err != nil && errors.Is(err, context.Canceled) && c.server.draining.Err() != nil {
		err = errEnding
	}
	if err != nil {
		a = &protocol.Answer{Error: fault.ToWire(err)}
	}
	if a != nil {
		c.answer(a)
	}
}

// dispatch carries out the request. It returns nil, nil if it has sent all answers itself.
func (c *call) dispatch(ctx context.Context) (*protocol.Answer, error) {
	r := &c.request
	switch r.Op {
	case protocol.OpCreate:
		return nil, c.create(ctx)
	case protocol.OpList:
		return nil, c.answerFrom(ctx, func() (*protocol.Answer, error) { return c.list(ctx) })
	case protocol.OpSnapshots:
		names, err := c.server.core.Snapshots(ctx, c.peer.uid)
		return &protocol.Answer{Snapshots: names}, err
	case protocol.OpBeginning:
		b, err := c.server.core.Beginning(ctx, r.Snapshot, c.peer.uid)
		return &protocol.Answer{Beginning: &b}, err
	case protocol.OpRemoveSnapshot:
		return &protocol.Answer{}, c.server.core.RemoveSnapshot(ctx, r.Snapshot, c.peer.uid)
	case protocol.OpEvents:
		return nil, c.follow(ctx)
	case protocol.OpPool:
		return c.pool()
	}
	if f, ok := imageOperations[r.Op]; ok {
		return c.images(ctx, f)
	}
	if err := c.checkVisible(ctx, r.ID); err != nil {
		// A user must not learn of other users' sandboxes, also not by a removal.
		if r.Op == protocol.OpRemove && errors.Is(err, fault.ErrNotFound) {
			return &protocol.Answer{}, c.forgetLevel()
		}
		return nil, err
	}
	switch r.Op {
	case protocol.OpRemove:
		return &protocol.Answer{}, c.remove(ctx, r.ID, r.Created)
	case protocol.OpInfo:
		return nil, c.answerFrom(ctx, func() (*protocol.Answer, error) {
			i, err := c.server.core.Info(ctx, r.ID)
			if err == nil && !c.peer.sees(i) { // the sandbox has got another owner since checkVisible
				err = &fault.SandboxError{ID: r.ID, Err: fault.ErrNotFound}
			}
			return &protocol.Answer{Info: &i}, err
		})
	case protocol.OpExecs:
		return nil, c.answerFrom(ctx, func() (*protocol.Answer, error) { return c.askSandbox(ctx) })
	case protocol.OpStart:
		return nil, c.start(ctx)
	case protocol.OpAttach:
		return nil, c.attach(ctx)
	case protocol.OpLayers:
		return c.layers(ctx)
	case protocol.OpApplied:
		return &protocol.Answer{}, c.withFiles(ctx, func(box Sandbox) error { return box.Applied(ctx, r.Tree, r.Stamps) })
	case protocol.OpDial:
		return nil, c.sendFile(ctx, func(box Sandbox) (*os.File, error) { return box.Dial(ctx, r.Target) })
	case protocol.OpNetworkDecide:
		return nil, c.sendFile(ctx, func(box Sandbox) (*os.File, error) { return box.NetworkDecider(ctx) })
	case protocol.OpNetworkLog:
		return c.networkLog(ctx)
	case protocol.OpUntie:
		return &protocol.Answer{}, c.withFiles(ctx, func(box Sandbox) error { return box.Untie(ctx, untieOf(r)) })
	case protocol.OpVerify:
		return &protocol.Answer{}, c.withFiles(ctx, func(box Sandbox) error { return box.Verify(ctx, r.Sync) })
	}
	return c.askSandbox(ctx)
}

// askSandbox carries out a request that needs a handle of the sandbox for a moment.
func (c *call) askSandbox(ctx context.Context) (a *protocol.Answer, err error) {
	r := &c.request
	a = &protocol.Answer{}
	err = c.server.handles.withSandbox(ctx, r.ID, c.checkedOwner(func(box Sandbox) error {
		switch r.Op {
		case protocol.OpExecs:
			a.Execs, err = box.Execs(ctx)
		case protocol.OpStats:
			var stats spec.Stats
			stats, err = box.Stats(ctx)
			a.Stats = &stats
		case protocol.OpPause:
			err = box.Pause(ctx)
		case protocol.OpResume:
			err = box.Resume(ctx)
		case protocol.OpUpdate:
			if r.Limits == nil {
				return &fault.ConfigError{Reason: "update without limits"}
			}
			if err := c.peer.allowLimits(r.Limits, false); err != nil {
				return err
			}
			err = box.Update(ctx, *r.Limits)
		case protocol.OpNetwork:
			if r.Network == nil {
				return &fault.ConfigError{Reason: "network without a request"}
			}
			if r.Network.Named, err = c.peer.allowGrant(r.Network.Grant); err != nil {
				return err
			}
			if r.Network.Upstream, err = c.peer.setUpstream(r.Network.Grant, r.Network.Upstream); err != nil {
				return err
			}
			var change spec.NetworkChange
			change, err = box.ChangeNetwork(ctx, *r.Network)
			a.Network = &change
		case protocol.OpUndo:
			err = box.Undo(ctx, r.Count)
		case protocol.OpDiscard:
			err = box.Discard(ctx)
		case protocol.OpSnapshot:
			err = box.Snapshot(ctx, r.Snapshot)
		case protocol.OpWorkspace:
			err = c.setWorkspace(ctx, box)
		default:
			return &fault.ConfigError{Reason: fmt.Sprintf("operation %.64q: this launcher does not know it", r.Op)}
		}
		return err
	}))
	return a, err
}

// sendFile gives the client a file that open has opened.
func (c *call) sendFile(ctx context.Context, open func(Sandbox) (*os.File, error)) error {
	var f *os.File
	err := c.server.handles.withSandbox(ctx, c.request.ID, c.checkedOwner(func(box Sandbox) (err error) {
		f, err = open(box)
		return err
	}))
	if err != nil {
		return err
	}
	defer f.Close()
	return c.deliver(ctx, &protocol.Answer{}, f)
}

// networkLog sends the events of the proxied network. With Follow it goes on until the client disconnects or the
// sandbox is removed.
func (c *call) networkLog(ctx context.Context) (*protocol.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.server.draining, cancel)()
	var events iter.Seq2[spec.NetworkEvent, error]
	err := c.server.handles.withSandbox(ctx, c.request.ID, c.checkedOwner(func(box Sandbox) error {
		events = box.NetworkEvents(ctx, c.request.Follow)
		return nil
	}))
	if err != nil {
		return nil, err
	}
	for event, err := range events {
		if err == nil {
			err = c.deliver(ctx, &protocol.Answer{NetworkEvent: &event})
		}
		if err != nil {
			return nil, err
		}
	}
	return &protocol.Answer{}, nil
}

// checkVisible refuses a sandbox of another user, as if it did not exist.
func (c *call) checkVisible(ctx context.Context, id string) error {
	if !isID(id) {
		return &fault.SandboxError{ID: fmt.Sprintf("%.64q", id), Err: fault.ErrNotFound}
	}
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

func (c *call) list(ctx context.Context) (*protocol.Answer, error) {
	seen, err := c.server.core.List(ctx, c.peer.owns)
	if err != nil && seen == nil {
		return nil, err
	}
	if err != nil {
		c.log().Error("list the sandboxes", "error", err)
	}
	return &protocol.Answer{List: seen}, nil
}

// untieOf is the question of an untie. Without one, each directory that was ever renamed back is an error.
func untieOf(r *protocol.Request) protocol.Untie {
	if r.Untie == nil {
		return protocol.Untie{Directories: true}
	}
	return *r.Untie
}
