package frontend

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sandbox-runtime/sandbox-runtime/internal/container"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// stdio connects the process's stdio with the caller's.
type stdio interface {
	// attach puts the process's ends into p.
	attach(p *container.Process)
	// started is called once the process has its ends.
	started() error
	// resize follows the size of the caller's terminal.
	resize()
	// finish waits for output still on its way and restores the terminal. It is called
	// also when the process did not start.
	finish()
}

// newStreams picks the kind: a terminal or not, ours to serve or the caller's.
func (s *Process) newStreams() (stdio, error) {
	switch {
	case s.spec.Terminal && s.Detach:
		socket, err := dialSocket(s.io.ConsoleSocket)
		if err != nil {
			return nil, fmt.Errorf("console socket: %w", err)
		}
		return &socketStreams{socket}, nil
	case s.spec.Terminal:
		return newTerminalStreams(!s.init) // an init waits for its release
	case s.Detach:
		return inheritStreams{}, nil
	default:
		return s.newPipeStreams()
	}
}

// inheritStreams gives the process this program's own stdio.
type inheritStreams struct{}

func (inheritStreams) attach(p *container.Process) {
	p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
}
func (inheritStreams) started() error { return nil }
func (inheritStreams) resize()        {}
func (inheritStreams) finish()        {}

// socketStreams sends the process's terminal to the listener of a socket.
type socketStreams struct{ socket *os.File }

func (s *socketStreams) attach(p *container.Process) { p.ConsoleSocket = s.socket }
func (s *socketStreams) started() error              { return nil }
func (s *socketStreams) resize()                     {}
func (s *socketStreams) finish()                     { s.socket.Close() }

// pipeStreams copies between the caller's stdio and pipes: the process never
// holds the caller's terminal or files.
type pipeStreams struct {
	theirs, ours [3]*os.File // stdin, stdout, stderr
	copying      sync.WaitGroup
}

func (s *Process) newPipeStreams() (_ *pipeStreams, err error) {
	uid, gid, err := s.container.HostRoot()
	if err != nil {
		return nil, err
	}
	p := &pipeStreams{}
	defer func() {
		if err != nil {
			p.finish()
		}
	}()
	for i := range p.theirs {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		p.theirs[i], p.ours[i] = w, r
		if i == 0 {
			p.theirs[i], p.ours[i] = r, w
		}
		// So that the process may open /dev/stdout anew.
		if err := p.theirs[i].Chown(uid, gid); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *pipeStreams) attach(to *container.Process) {
	to.Stdin, to.Stdout, to.Stderr = p.theirs[0], p.theirs[1], p.theirs[2]
}

func (p *pipeStreams) started() error {
	descriptor.Close(p.theirs[:]...)
	go func() { // ends with the program: a read of stdin can't be broken off
		_, _ = io.Copy(p.ours[0], os.Stdin)
		p.ours[0].Close()
	}()
	for i, to := range map[int]*os.File{1: os.Stdout, 2: os.Stderr} {
		p.copying.Go(func() {
			_, _ = io.Copy(to, p.ours[i])
			p.ours[i].Close() // if the caller reads no more, the process learns it
		})
	}
	return nil
}

func (p *pipeStreams) resize() {}

func (p *pipeStreams) finish() {
	p.copying.Wait()
	descriptor.Close(p.theirs[:]...)
	descriptor.Close(p.ours[:]...)
}

var errNoTerminal = errors.New("no terminal to use for the container's: run it from one, or set process.terminal to false")
