package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/internal/inside/streams"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Process is a command that was sent to a sandbox. Its methods may be called from
// several goroutines. The caller must call Wait or Close.
type Process struct {
	client  *Client
	channel *channel.Conn
	// tells says that the launcher tells the start without being asked. kept says that it
	// tells the end only if it is asked: only one client learns the end of a detached
	// command.
	// detaches says that this Process has started a detached command.
	tells, kept, detaches bool
	tell, ask             sync.Once
	// begun is closed once the start is known, or the end.
	begun chan struct{}
	// joining is closed once the launcher tells that the writes of a transaction join.
	joining   chan struct{}
	askJoin   sync.Once
	knowsJoin sync.Once

	// reading is held by the goroutine that receives, and guards the fields below.
	reading *semaphore.Weighted
	started bool
	ended   bool
	result  spec.Result
	err     error

	// mu guards requests that are made while another goroutine receives.
	mu    sync.Mutex
	id    string
	files map[FileKind]*os.File
}

// startFiles is how many descriptors come with Started at most.
const startFiles = 2

// Start sends a command with its three standard files, of which a nil one is
// /dev/null, and returns. It does not wait for anything: that the command can't
// be executed is an error of Started or Wait. The files are the caller's to
// close at once.
//
// The files have to be pipes that nobody else has opened by a name, as
// os.Pipe makes them. With a terminal there are none; with Detached neither.
func (c *Client) Start(ctx context.Context, id string, command spec.Command, files [3]*os.File) (*Process, error) {
	p, err := c.start(ctx, id, newWireCommand(command), files)
	if err != nil {
		return nil, err
	}
	p.tells, p.kept, p.detaches = command.Terminal != nil || command.Detached, command.Detached, command.Detached
	return p, nil
}

// StartFiles is Start for the program that serves the sandbox's files. The launcher brings
// that program along. It runs as the sandbox's user, without a timeout.
func (c *Client) StartFiles(ctx context.Context, id string, stdin, stdout *os.File) (*Process, error) {
	return c.start(ctx, id, &WireCommand{Files: true}, [3]*os.File{stdin, stdout, nil})
}

func (c *Client) start(ctx context.Context, id string, command *WireCommand, files [3]*os.File) (*Process, error) {
	r := StartRequest{Command: command}
	var given []*os.File
	for i, f := range files {
		if f != nil {
			r.Stdio |= 1 << i
			given = append(given, f)
		}
	}
	ch, err := OpStart.open(ctx, c, About[StartRequest]{id, &r}, given...)
	if err != nil {
		return nil, err
	}
	return c.process(ch, ""), nil
}

// Attach takes up a detached command, which may have ended.
func (c *Client) Attach(ctx context.Context, id, exec string) (*Process, error) {
	ch, err := OpAttach.open(ctx, c, About[string]{id, &exec})
	if err != nil {
		return nil, err
	}
	p := c.process(ch, exec)
	p.tells, p.kept = true, true
	return p, nil
}

// process is the command of a call.
func (c *Client) process(ch *channel.Conn, exec string) *Process {
	return &Process{client: c, channel: ch, id: exec, reading: semaphore.NewWeighted(1), begun: make(chan struct{}), joining: make(chan struct{})}
}

// ID of the exec, once Started or Wait has returned.
func (p *Process) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// Started waits until the command was executed.
//
// Errors: *NotRunError where it can't be, *ConfigError, ErrNotFound,
// ErrNotRunning, ErrPaused.
func (p *Process) Started(ctx context.Context) error {
	if !p.tells {
		p.tell.Do(func() {
			// The answer shows the effect.
			_ = p.control(&Control{Tell: true})
		})
	}
	// A call of Wait may be the one that receives the answer, and receives until the end.
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.begun:
			cancel()
		case <-waiting.Done():
		}
	}()
	err := p.receiveUntil(waiting, func() bool { return p.started || p.ended })
	select {
	case <-p.begun:
	default:
		return err
	}
	if !p.started {
		return p.err // nil: the end came first, and was not the launcher's
	}
	return nil
}

// Wait waits for the command's end, and returns how it ended, without its
// output. Once it is known, every call returns it; after an error of ctx it may
// be called again, and the command goes on.
//
// Errors: those of Started; ErrUnavailable where the launcher has gone and how
// the command ended will not be known.
func (p *Process) Wait(ctx context.Context) (spec.Result, error) {
	if p.kept {
		p.ask.Do(func() { _ = p.control(&Control{Wait: true}) }) // as in Started
	}
	if err := p.receiveUntil(ctx, func() bool { return p.ended }); err != nil {
		return spec.Result{}, err
	}
	return p.result, p.err
}

// Joining returns a channel that is closed when the command of a transaction has succeeded and its
// writes begin to join. Another goroutine must call Wait. A launcher of an earlier version never tells.
func (p *Process) Joining() <-chan struct{} {
	p.askJoin.Do(func() { _ = p.control(&Control{TellJoin: true}) }) // as in Started
	return p.joining
}

// receiveUntil receives until done says so. done is called with reading held.
func (p *Process) receiveUntil(ctx context.Context, done func() bool) error {
	if err := p.reading.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.reading.Release(1)
	for !done() {
		a, files, err := OpStart.receive(ctx, p.client, p.channel)
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return err
		}
		if err == nil {
			err = p.takeAnswer(a, files)
		}
		if err != nil {
			p.end(spec.Result{}, err)
		}
	}
	return nil
}

// takeAnswer takes one answer.
func (p *Process) takeAnswer(a CommandAnswer, files []*os.File) error {
	switch {
	case a.Started != nil && !p.started && len(files) == len(a.Started.Files):
		if err := p.keep(a.Started, files); err != nil {
			return err
		}
		p.started = true
		close(p.begun)
		return nil
	case a.Joining && len(files) == 0:
		p.knowsJoin.Do(func() { close(p.joining) })
		return nil
	case a.Result != nil && len(files) == 0:
		p.end(a.Result.Plain(), nil)
		return nil
	}
	descriptor.Close(files...)
	return errAnswer
}

// keep makes the files of Started ready for use. Go's poller reads a terminal's master, so
// that Close interrupts.
func (p *Process) keep(s *Started, files []*os.File) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id = s.Exec
	p.files = map[FileKind]*os.File{}
	var errs []error
	for i, f := range files {
		if s.Files[i] == FileTerminal {
			terminal, err := descriptor.Pollable(f)
			if err := errors.Join(err, f.Close()); err != nil {
				errs = append(errs, err)
				descriptor.Close(terminal)
				continue
			}
			f = terminal
		}
		p.files[s.Files[i]] = f
	}
	return errors.Join(errs...)
}

// end keeps how the command ended, or why that will not be known.
func (p *Process) end(result spec.Result, err error) {
	p.ended, p.result, p.err = true, result, err
	if !p.started {
		close(p.begun)
	}
	p.channel.Close()
	p.channel.Discard()
}

// Terminal is the master of the command's terminal, once Started has returned;
// nil if it has none. Close closes it.
func (p *Process) Terminal() *os.File { return p.file(FileTerminal) }

// Output are the files with the output of a detached command, once Started has returned;
// without files for others. Close closes them.
func (p *Process) Output() (stdout, stderr streams.LogFile) {
	return p.log(FileStdout, FileStdoutRing), p.log(FileStderr, FileStderrRing)
}

// log is the file of a stream, in one of the two forms.
func (p *Process) log(plain, ring FileKind) streams.LogFile {
	if f := p.file(ring); f != nil {
		return streams.LogFile{File: f, Ring: true}
	}
	return streams.LogFile{File: p.file(plain)}
}

func (p *Process) file(kind FileKind) *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files[kind]
}

// Signal sends a signal to the command, or with tree to it and all that it
// started, daemons included. It does not wait for its delivery. The error is
// os.ErrProcessDone once the end is known.
func (p *Process) Signal(sig syscall.Signal, tree bool) error {
	if sig < 1 || sig > 64 {
		return &fault.ConfigError{Reason: fmt.Sprintf("no signal has the number %d", int(sig))}
	}
	return p.control(&Control{Signal: int(sig), Tree: tree})
}

// Terminate ends the command and all that it started: by SIGTERM, and after the command's grace by
// SIGKILL. It does not wait for the end. The error is os.ErrProcessDone once the end is known.
func (p *Process) Terminate() error { return p.control(&Control{End: true}) }

func (p *Process) control(c *Control) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	err = p.channel.Send(context.Background(), body)
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		return os.ErrProcessDone
	}
	return err
}

// abandonTime bounds how long a launcher may take to take the message that a command is given up.
const abandonTime = time.Second

// abandon has the launcher end a detached command whose start is not known yet.
func (p *Process) abandon() {
	select {
	case <-p.begun:
		return
	default:
	}
	body, err := json.Marshal(&Control{Signal: int(syscall.SIGKILL), Tree: true, Abandon: true})
	if !p.detaches || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), abandonTime)
	defer cancel()
	_ = p.channel.Send(ctx, body) // after an error the launcher has ended the call, or cannot be reached
}

// Close gives up the command: if it still runs and is not detached, it is killed with all
// that it has started. So is a detached command whose start is not known yet: nobody would
// know its id. Close closes the files that came from the launcher. Other calls
// that wait return os.ErrClosed. It is safe to call twice.
func (p *Process) Close() error {
	p.abandon()
	err := p.channel.Close()
	_ = p.reading.Acquire(context.Background(), 1) // it waits as long as it takes
	defer p.reading.Release(1)
	if !p.ended {
		p.end(spec.Result{}, os.ErrClosed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for kind, f := range p.files {
		f.Close()
		delete(p.files, kind)
	}
	return err
}
