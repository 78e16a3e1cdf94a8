package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/protocol"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// allowStart holds the files and the output of a command to the rule.
func allowStart(_ context.Context, c *call, q *protocol.StartRequest) error {
	if q.Command == nil {
		return &fault.ConfigError{Reason: "start without a command"}
	}
	if err := c.takeStdio(q.Stdio); err != nil {
		return err
	}
	if err := c.peer.ownPipes(c.stdio); err != nil {
		return err
	}
	return c.peer.allowOutput(&q.Command.Command)
}

// runCommand starts a command and serves it until its end.
func runCommand(ctx context.Context, to commandAnswers, q *protocol.StartRequest) error {
	c := to.call
	r, h, err := c.startCommand(ctx, q.Command)
	if err != nil {
		return err
	}
	defer c.server.handles.release(h)
	*q = protocol.StartRequest{}
	c.doneWithRequest()
	// The command has the files now. As long as the launcher held copies, the client would not
	// see the end of the output.
	descriptor.Close(c.files...)
	c.peer.leaveDescriptors(len(c.files))
	c.held -= len(c.files)
	c.files, c.stdio = nil, [3]*os.File{}
	return serveCommand(ctx, to, h, r)
}

// startCommand starts a command.
func (c *call) startCommand(ctx context.Context, w *protocol.WireCommand) (*runningCommand, *handle, error) {
	if w.Files {
		if !reflect.DeepEqual(w, &protocol.WireCommand{Files: true}) {
			return nil, nil, &fault.ConfigError{Reason: "a command that serves the sandbox's files takes no other settings"}
		}
		return c.run(ctx, &runningCommand{}, func(box Sandbox) (Process, error) { return box.StartFiles(ctx, c.stdio) })
	}
	command := w.Plain()
	r := &runningCommand{detached: command.Detached, abandoned: command.Detached, starts: command.Detached,
		tell: command.Terminal != nil || command.Detached}
	return c.run(ctx, r, func(box Sandbox) (Process, error) { return box.Start(ctx, command, c.stdio) })
}

// commandAnswers tell of a command.
type commandAnswers = answers[protocol.CommandAnswer]

// attachCommand serves a detached command.
func attachCommand(ctx context.Context, to commandAnswers, exec *string) error {
	if !isID(*exec) {
		return &fault.SandboxError{ID: to.id, Err: fmt.Errorf("exec %.64q %w", *exec, fault.ErrNotFound)}
	}
	r, h, err := to.run(ctx, &runningCommand{detached: true, tell: true}, func(box Sandbox) (Process, error) {
		return box.Attach(ctx, *exec)
	})
	if err != nil {
		return err
	}
	defer to.server.handles.release(h)
	return serveCommand(ctx, to, h, r)
}

// run gives r the process of the request's sandbox. The caller releases the handle.
func (c *call) run(ctx context.Context, r *runningCommand, process func(Sandbox) (Process, error)) (*runningCommand, *handle, error) {
	h, err := c.server.handles.hold(ctx, c.id, c.checkedOwner(func(box Sandbox) (err error) {
		r.Process, err = process(box)
		return err
	}))
	return r, h, err
}

// takeStdio pairs the three files of a command with the descriptors of the request. given has a bit for each.
func (c *call) takeStdio(given int) error {
	files := c.files
	for i := range c.stdio {
		if given&(1<<i) == 0 {
			continue
		}
		if len(files) == 0 {
			return &fault.ConfigError{Reason: "fewer descriptors than were announced"}
		}
		c.stdio[i], files = files[0], files[1:]
	}
	if len(files) > 0 || given>>len(c.stdio) != 0 {
		return &fault.ConfigError{Reason: "more descriptors than a command has"}
	}
	return nil
}

// runningCommand is a command with a connected client.
type runningCommand struct {
	Process
	detached bool
	// tell says that the client gets the answer about the start without a request. This answer
	// has files that the client must get.
	tell bool
	// abandoned says that this call has started a detached command, that the client does not know the
	// command, and that the call therefore ends the command. call.mu guards abandoned.
	abandoned bool
	// starts says that this call has started the detached command, and gaveUp that the client has
	// given up the command. call.mu guards gaveUp.
	starts, gaveUp bool
	// asked is closed, and waited is true, when the client has asked for the end of a detached
	// command.
	asked  chan struct{}
	waited bool
	// tellJoin is closed when the client has asked whether a transaction joins.
	tellJoin  chan struct{}
	asksJoins bool
}

// serveCommand serves a command until it ends or the client disconnects. If the client disconnects, serveCommand
// kills a command that is not detached.
func serveCommand(ctx context.Context, to commandAnswers, h *handle, r *runningCommand) (err error) {
	c := to.call
	r.asked, r.tellJoin = make(chan struct{}), make(chan struct{})
	client := ctx // ends with the client, and not when the launcher drains
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	var telling sync.WaitGroup
	if r.Joining() != nil {
		telling.Go(func() { watchJoin(to, r, over) })
	}
	defer func() {
		cancel()
		close(over)
		c.takeControls(func(protocol.Control) {}) // ignore later controls
		telling.Wait()
		if r.abandoned { // no control changes it any more
			c.endAbandoned(r)
		}
		if err := r.Close(); err != nil {
			c.log().Error("end a command", "id", c.id, "exec", r.ID(), "error", err)
		}
		if errors.Is(err, fault.ErrNotRunning) || errors.Is(err, fault.ErrNotFound) {
			c.server.handles.forget(h)
		}
	}()
	c.takeControls(controls(ctx, to, r, &telling))
	if r.tell {
		if err := r.Started(ctx); err != nil {
			return err
		}
		if err := sendStarted(to, r.Process); err != nil {
			return err
		}
		c.noteKnown(r)
	}
	if r.detached {
		// The command goes on without the launcher: nothing is lost when the launcher ends. After a
		// client has got the result nobody can attach any more, so the client must ask for it.
		defer context.AfterFunc(c.server.draining, cancel)()
		select {
		case <-r.asked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	result, err := r.Wait(ctx)
	if r.Joining() != nil { // then hangUp leaves the socket open
		context.AfterFunc(client, func() { time.AfterFunc(lastWord, func() { c.channel.Close() }) })
	}
	if err != nil {
		return err
	}
	c.server.noteEnd(h, result)
	sendResult(client, to, result)
	return nil
}

// controls returns the function that carries out the controls of the client. telling waits for the work that it begins.
func controls(ctx context.Context, to commandAnswers, r *runningCommand, telling *sync.WaitGroup) func(protocol.Control) {
	told, ends := r.tell, false
	return func(control protocol.Control) {
		if control.Tell && !told {
			told = true
			telling.Go(func() {
				defer to.recover()
				// If the command does not run, the answer about its end says so.
				if r.Started(ctx) == nil {
					_ = sendStarted(to, r.Process) // listen notices a client that is gone
				}
			})
		}
		if control.End && !ends {
			ends = true
			telling.Go(func() {
				defer to.recover()
				_ = r.Terminate() // the answer about its end says so
			})
		}
		r.control(control)
	}
}

// watchJoin notes that the writes of a transaction join, and tells the client if it asks for that. It
// returns once the client has got the Result.
func watchJoin(to commandAnswers, r *runningCommand, over <-chan struct{}) {
	c := to.call
	defer c.recover()
	select {
	case <-r.Joining():
	case <-over:
		return
	}
	c.server.joins.Add(1)
	defer c.server.joins.Add(-1)
	c.joining.Store(true)
	select {
	case <-r.tellJoin:
		to.answer(protocol.CommandAnswer{Joining: true})
		<-over
	case <-over:
	}
}

// noteKnown notes that the client knows of its command, unless the client has given up the command.
func (c *call) noteKnown(r *runningCommand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.abandoned = r.gaveUp
}

// forgetTime bounds the end of an abandoned command.
const forgetTime = 30 * time.Second

// endAbandoned kills a detached command that no client knows, and removes its state.
func (c *call) endAbandoned(r *runningCommand) {
	ctx, cancel := context.WithTimeout(context.Background(), forgetTime)
	defer cancel()
	err := r.Signal(syscall.SIGKILL, true)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	if err == nil {
		_, err = r.Wait(ctx)
	}
	if err != nil {
		c.log().Error("end a detached command whose client has gone", "id", c.id, "exec", r.ID(), "error", err)
	}
}

// sendResult sends a Result. A client can take it late, and a Result that is lost cannot be asked for again. So only the
// paths of changed files are bounded: a client that does not read its Results gets the next ones without them.
func sendResult(client context.Context, to commandAnswers, r spec.Result) {
	body := to.encode(protocol.CommandAnswer{Result: protocol.NewWireResult(r)})
	if len(body) > smallAnswer {
		if to.peer.results.TryAcquire(1) {
			defer to.peer.results.Release(1)
		} else {
			r.Files = &spec.Files{Truncated: true}
			body = to.encode(protocol.CommandAnswer{Result: protocol.NewWireResult(r)})
		}
	}
	if client.Err() != nil { // the launcher ends: it has waited for a join only
		var cancel context.CancelFunc
		client, cancel = context.WithTimeout(context.WithoutCancel(client), lastWord)
		defer cancel()
	}
	if body != nil {
		_ = to.channel.Send(client, body) // listen notices a client that is gone
	}
}

// noteEnd updates the state of the sandbox after the end of a command.
func (s *Server) noteEnd(h *handle, r spec.Result) {
	switch r.Status {
	case spec.StatusLost:
		s.handles.forget(h)
	case spec.StatusOOMKilled:
		s.events.killed(h.id)
	}
}

// control carries out a control. The caller must not call it concurrently.
func (r *runningCommand) control(control protocol.Control) {
	if control.Wait && !r.waited {
		r.waited = true
		close(r.asked)
	}
	if control.TellJoin && !r.asksJoins {
		r.asksJoins = true
		close(r.tellJoin)
	}
	if control.Abandon && r.starts {
		r.gaveUp, r.abandoned = true, true
	}
	if control.Signal != 0 {
		// Ignore an error: if the command has ended, the answer about its end says so.
		_ = r.Signal(syscall.Signal(control.Signal), control.Tree)
	}
}

// sendStarted sends the answer that the command runs, with its files.
func sendStarted(to commandAnswers, p Process) error {
	started := &protocol.Started{Exec: p.ID()}
	var files []*os.File
	give := func(kind protocol.FileKind, f *os.File) {
		if f != nil {
			started.Files = append(started.Files, kind)
			files = append(files, f)
		}
	}
	give(protocol.FileTerminal, p.Terminal())
	stdout, stderr := p.Output()
	if stdout.Ring {
		give(protocol.FileStdoutRing, stdout.File)
		give(protocol.FileStderrRing, stderr.File)
	} else {
		give(protocol.FileStdout, stdout.File)
		give(protocol.FileStderr, stderr.File)
	}
	return to.channel.Send(context.Background(), to.encode(protocol.CommandAnswer{Started: started}), files...)
}
