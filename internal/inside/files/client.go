package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// A Process is the server as its client has it: Wait returns why it has ended,
// and Close ends it.
type Process interface {
	Wait(ctx context.Context) error
	Close() error
}

// Options say how a client lives with its server.
type Options struct {
	// Idle is how long a client that nobody uses keeps its server.
	Idle time.Duration
	// Silent is asked if the server does not answer. An error is the reason, such as a
	// paused sandbox, and the error of all waiting calls.
	Silent func(ctx context.Context) error
}

const (
	// askAfter is how long the server may be silent before somebody asks why.
	askAfter = 300 * time.Millisecond
	// giveUpAfter is how long the server may be silent without a reason. A running server
	// answers pings in any case.
	giveUpAfter = 10 * time.Second
	// maxCalls are under way at once; others wait.
	maxCalls = 64
	// maxLate bounds the answers that are owed to callers that left more than giveUpAfter ago. The server is
	// given up if it owes more.
	maxLate = 16
	// waitTime is how long a server may take to say why it has ended.
	waitTime = 5 * time.Second
	// endTime is how long a server may take to remove the files that were not complete.
	endTime = time.Second
)

var (
	// ErrEnded is of a server that is not there any more. It may be started anew.
	ErrEnded = errors.New("the server of the files has ended")
	// ErrSilent is of a server that does not answer, since something stops it.
	ErrSilent = errors.New("it did not answer for " + giveUpAfter.String() + ": something in the sandbox holds it up")
	// ErrClosed is of a client that was closed.
	ErrClosed = errors.New("closed")
)

// A Client asks a server. Its methods may be called from several goroutines.
type Client struct {
	in, out *os.File
	process Process
	options Options
	// sending is held by the one that writes; calls has room for those under
	// way: channels, for a context to interrupt the wait.
	sending *semaphore.Weighted
	calls   *semaphore.Weighted
	workers sync.WaitGroup
	done    chan struct{}

	// mu guards the fields below.
	mu      sync.Mutex
	next    uint32
	pending map[uint32]*pendingCall
	open    int // handles
	heard   time.Time
	quiet   bool // it was asked why it is silent
	pinged  uint32
	over    error
}

// A pendingCall waits for an answer.
type pendingCall struct {
	answer chan *answer // has room for one
	cancel context.CancelCauseFunc
	since  time.Time
	// patient calls are answered when there is something to say.
	patient bool
	// left is the time when the caller left. It is zero while the caller waits.
	left time.Time
	// holds is true if the caller left, and the call keeps its place until the answer comes.
	holds bool
}

// NewClient takes over the pipes to and from a server, and the server.
func NewClient(in, out *os.File, p Process, o Options) *Client {
	c := &Client{
		in: in, out: out, process: p, options: o, sending: semaphore.NewWeighted(1), calls: semaphore.NewWeighted(maxCalls),
		done: make(chan struct{}), pending: map[uint32]*pendingCall{}, heard: time.Now(),
	}
	c.workers.Go(c.listen)
	c.workers.Go(c.attend)
	return c
}

// Err is why the client can't be used any more, nil while it can.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// Close ends the server and all waits for it. It is safe to call twice.
func (c *Client) Close() {
	c.fail(ErrClosed)
	c.workers.Wait()
}

// fail ends the client, for the reason that came first.
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.over != nil {
		c.mu.Unlock()
		return
	}
	c.over = err
	for _, p := range c.pending {
		p.cancel(err)
		c.endPlace(p)
	}
	c.mu.Unlock()
	close(c.done)
	c.in.Close()
	if !errors.Is(err, ErrSilent) && !errors.Is(err, ErrEnded) {
		c.letEnd()
	}
	c.out.Close()
	c.process.Close() //nolint:errcheck // it was of no use
}

// letEnd gives the server time to end by itself: a server with files that are being written removes them first.
func (c *Client) letEnd() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = c.process.Wait(ctx) // its end is all that counts
}

// listen takes answers, until there are no more.
func (c *Client) listen() {
	err := c.receive()
	if errors.Is(err, os.ErrClosed) {
		return // by fail
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		ctx, cancel := context.WithTimeout(context.Background(), waitTime)
		defer cancel()
		err = ErrEnded
		if why := c.process.Wait(ctx); why != nil {
			err = fmt.Errorf("%w: %w", ErrEnded, why)
		}
	}
	c.fail(err)
}

func (c *Client) receive() error {
	greeted := false
	for {
		b, err := readFrame(c.out, nil)
		if err != nil {
			return err
		}
		a, err := parseAnswer(b)
		if err != nil {
			return fmt.Errorf("the server of the files answers with %w", err)
		}
		if !greeted {
			if a.id != 0 || a.handle != Version {
				return fmt.Errorf("the server of the files has version %d, this program %d: run both from the same version", a.handle, Version)
			}
			greeted = true
			continue
		}
		if err := c.deliver(&a); err != nil {
			return err
		}
	}
}

// deliver gives an answer to the call that has asked.
func (c *Client) deliver(a *answer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	if c.quiet { // all answers were late for a reason
		c.quiet = false
		for _, p := range c.pending {
			if !p.left.IsZero() {
				p.left = c.heard
			}
		}
	}
	p, ok := c.pending[a.id]
	if !ok {
		return fmt.Errorf("the server of the files answers call %d, which does not exist", a.id)
	}
	delete(c.pending, a.id)
	c.endPlace(p)
	if a.handle != 0 {
		c.open++
	}
	if p.left.IsZero() {
		p.answer <- a
	} else if a.handle != 0 {
		c.releaseLocked(a.handle)
	}
	return nil
}

// endPlace ends the place of a call whose caller has gone. The caller of endPlace holds mu.
func (c *Client) endPlace(p *pendingCall) {
	if p.holds {
		p.holds = false
		c.calls.Release(1)
	}
}

// call asks, and waits for the answer. Its error is ctx's, one of the connection, or the
// server's error about the file.
func (c *Client) call(ctx context.Context, r request) (*answer, error) {
	return c.ask(ctx, r, false)
}

func (c *Client) ask(ctx context.Context, r request, patient bool) (*answer, error) {
	a, err := c.askUntil(ctx, r, patient)
	return a, endCause(ctx, err)
}

// endCause adds the end of a context to the cause that the caller gave for this end.
func endCause(ctx context.Context, err error) error {
	if end := ctx.Err(); end != nil && err == context.Cause(ctx) && err != end { // the cause itself
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}

func (c *Client) askUntil(ctx context.Context, r request, patient bool) (*answer, error) {
	if err := c.running(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &pendingCall{answer: make(chan *answer, 1), cancel: cancel, since: time.Now(), patient: patient}
	if err := c.register(p, &r); err != nil { // before the wait for a place: inquire ends all waits of a paused sandbox
		return nil, err
	}
	isOwed := false
	if !patient {
		if c.calls.Acquire(ctx, 1) != nil {
			c.leave(r.id, p, false)
			return nil, context.Cause(ctx)
		}
		defer func() {
			if !isOwed {
				c.calls.Release(1)
			}
		}()
	}
	isSent, err := c.send(ctx, r.encode())
	if err == nil {
		select {
		case a := <-p.answer:
			return a, codeError(a.code)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	isOwed = c.leave(r.id, p, isSent)
	return nil, err
}

// running asks first where the server was silent the last time.
func (c *Client) running(ctx context.Context) error {
	c.mu.Lock()
	quiet := c.quiet
	c.mu.Unlock()
	if quiet && c.options.Silent != nil {
		return c.options.Silent(ctx)
	}
	return nil
}

func (c *Client) register(p *pendingCall, r *request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil {
		return c.over
	}
	for c.next++; c.next == 0 || c.pending[c.next] != nil; {
		c.next++
	}
	r.id = c.next
	c.pending[r.id] = p
	return nil
}

// leave notes that the caller has gone. It returns true if the server still owes the answer of a call that was sent.
// The call then keeps its place until the answer comes: the server must not get more calls than it takes.
func (c *Client) leave(id uint32, p *pendingCall, isSent bool) (isOwed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.pending[id] != p: // the answer came at this moment, or the server has answered a call that was not sent
		select {
		case came := <-p.answer:
			if came.handle != 0 {
				c.releaseLocked(came.handle)
			}
		default:
		}
		return false
	case !isSent:
		delete(c.pending, id)
		return false
	}
	p.left, p.holds = time.Now(), c.over == nil && !p.patient
	return p.holds
}

// send writes one frame, to its end also when ctx is done meanwhile: half a frame would make all later frames
// unreadable. isSent says that writing has begun.
func (c *Client) send(ctx context.Context, frame []byte) (isSent bool, err error) {
	if c.sending.Acquire(ctx, 1) != nil {
		return false, context.Cause(ctx)
	}
	written := make(chan error, 1)
	write := func() {
		_, err := c.in.Write(frame)
		c.sending.Release(1)
		written <- err
	}
	c.mu.Lock()
	over := c.over
	if over == nil {
		c.workers.Go(write) // which Close waits for: there are others still
	}
	c.mu.Unlock()
	if over != nil {
		c.sending.Release(1)
		return false, over
	}
	select {
	case err := <-written:
		return true, c.unsent(ctx, err)
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// unsent words the reason why a frame could not be written: the listening goroutine finds
// it out.
func (c *Client) unsent(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	select {
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(waitTime):
		c.fail(fmt.Errorf("%w: %w", ErrEnded, err))
		return c.Err()
	}
}

// release has the server let go of a handle, at some time.
func (c *Client) release(handle uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(handle)
}

// releaseLocked is release with mu held.
func (c *Client) releaseLocked(handle uint32) {
	c.open--
	if c.over != nil {
		return
	}
	c.workers.Go(func() { // which Close waits for: there are others still
		ctx, cancel := context.WithTimeout(context.Background(), giveUpAfter)
		defer cancel()
		_, _ = c.send(ctx, (&request{op: opClose, handle: handle}).encode()) // it is gone with the server
	})
}

// attend sees to a server that is silent, and to one that nobody uses.
func (c *Client) attend() {
	ticker := time.NewTicker(askAfter)
	defer ticker.Stop()
	for {
		select {
		case <-c.done:
			return
		case <-ticker.C:
		}
		silent, idle, owed := c.state()
		switch {
		case idle > c.options.Idle:
			c.fail(ErrEnded)
		case silent > giveUpAfter, owed > maxLate && !c.endWithReason():
			c.fail(ErrSilent)
		case silent > askAfter:
			c.inquire()
		}
	}
}

// state returns three values. silent is the longest wait of a caller without any answer of the server. idle is the
// time without any use. owed counts the answers that are owed to callers that left more than giveUpAfter ago. It is 0
// while the silence has a known reason.
func (c *Client) state() (silent, idle time.Duration, owed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	used := c.open > 0
	for _, p := range c.pending {
		if !p.left.IsZero() {
			if !c.quiet && now.Sub(p.left) > giveUpAfter {
				owed++
			}
			continue
		}
		used = true
		if !p.patient {
			silent = max(silent, min(now.Sub(p.since), now.Sub(c.heard)))
		}
	}
	if !used {
		idle = now.Sub(c.heard)
	}
	return silent, idle, owed
}

// EndUnused ends the server if no call uses it at the moment, as after a long idle time.
func (c *Client) EndUnused() {
	if _, idle, _ := c.state(); idle > 0 {
		c.fail(ErrEnded)
	}
}

// endWithReason asks why the server is silent. If there is a reason, it ends all waits with the reason and returns true.
func (c *Client) endWithReason() bool {
	if c.options.Silent == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	err := c.options.Silent(ctx)
	if err == nil || ctx.Err() != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = true
	for _, p := range c.pending {
		if !p.patient {
			p.cancel(err)
		}
	}
	return true
}

// inquire asks why the server is silent. Without a reason it sends a ping, which a running server answers.
func (c *Client) inquire() {
	if c.endWithReason() {
		return
	}
	c.mu.Lock()
	waits := c.pending[c.pinged] != nil
	c.mu.Unlock()
	if waits {
		return
	}
	ping := &pendingCall{answer: make(chan *answer, 1), cancel: func(error) {}, since: time.Now(), left: time.Now()}
	r := request{op: opPing}
	if !c.sending.TryAcquire(1) {
		return // somebody waits to send
	}
	c.sending.Release(1)
	if c.register(ping, &r) == nil {
		c.mu.Lock()
		c.pinged = r.id
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), waitTime)
		defer cancel()
		if isSent, _ := c.send(ctx, r.encode()); !isSent { // the waiting call gets the answer
			c.leave(r.id, ping, false)
		}
	}
}
