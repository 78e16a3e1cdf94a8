package streams

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A command gets pipes that belong to it, never the caller's own descriptors: from a
// terminal's it could read the user's typing, and from any it could reopen the file behind
// it through /proc/self/fd.

// Streams are this program's side of a command's standard streams.
type Streams struct {
	Inside [3]*os.File // for the command; stdout and stderr may be the same
	stdin  io.Reader
	input  *os.File // the writing end for stdin
	Out    []*Stream
	late   *time.Timer
	over   atomic.Bool // nobody wants the rest of the output

	copying sync.WaitGroup
	// mu guards begun.
	mu    sync.Mutex
	begun bool // goroutines copy Out, or the copying is over
}

// A Stream is an output stream of the command.
type Stream struct {
	File *os.File
	// Raw is the reading end of a pipe that no goroutine copies yet, else -1.
	Raw int
	To  io.Writer
	err error
	// Terminal says that the stream is the master of a terminal.
	Terminal bool
}

// ErrNotTaken says that the caller did not read the output in time.
var ErrNotTaken = errors.New("output that the caller did not take was dropped")

// Open makes the pipes.
func (s *Streams) Open(stdin io.Reader, stdout, stderr io.Writer) (err error) {
	defer func() {
		if err != nil {
			s.CloseInside()
			s.Abandon()
		}
	}()
	if stdin != nil {
		if err := s.openInput(stdin); err != nil {
			return err
		}
	}
	if err := s.openOutput(1, stdout); err != nil {
		return err
	}
	if sameWriter(stdout, stderr) {
		s.Inside[2] = s.Inside[1]
		return nil
	}
	return s.openOutput(2, stderr)
}

// sameWriter tells whether two writers are one. Some can't be compared.
func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// Together returns writers for two streams that different goroutines copy. If the two writers are one, at most one
// goroutine writes to it at a time.
func Together(a, b io.Writer) (io.Writer, io.Writer) {
	if a == nil || !sameWriter(a, b) {
		return a, b
	}
	one := &turnWriter{to: a}
	return one, one
}

// A turnWriter lets one goroutine write at a time.
type turnWriter struct {
	turn sync.Mutex
	to   io.Writer
}

func (w *turnWriter) Write(b []byte) (int, error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	return w.to.Write(b)
}

// pageful is how many bytes a pipe takes without its reader, with any limits of its owner
// (pipe(7), "Pipe capacity").
const pageful = 4096

func (s *Streams) openInput(src io.Reader) error {
	r, w, err := pipe(1)
	if err != nil {
		return err
	}
	s.Inside[0] = os.NewFile(uintptr(r), "|0")
	s.input = os.NewFile(uintptr(w), "|0")
	s.stdin = src
	if l, ok := src.(interface{ Len() int }); ok && l.Len() <= pageful {
		// It fits: nobody needs to stay for it.
		_, err := io.Copy(s.input, io.LimitReader(src, pageful))
		s.input.Close()
		s.stdin = nil
		return err
	}
	return nil
}

func (s *Streams) openOutput(i int, to io.Writer) error {
	if sameWriter(to, io.Discard) {
		return nil
	}
	r, w, err := pipe(0)
	if err != nil {
		return err
	}
	s.Inside[i] = os.NewFile(uintptr(w), "|1")
	s.Out = append(s.Out, &Stream{Raw: r, To: to})
	return nil
}

// pipe makes a pipe of which this program's end, 0 or 1, does not block.
func pipe(ours int) (r, w int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, os.NewSyscallError("pipe", err)
	}
	if err := unix.SetNonblock(fds[ours], true); err != nil {
		descriptor.CloseFD(fds[:]...)
		return -1, -1, os.NewSyscallError("fcntl", err)
	}
	return fds[0], fds[1], nil
}

// CloseInside closes the files of which the command has its own copies by now.
func (s *Streams) CloseInside() {
	if s.Inside[2] == s.Inside[1] {
		s.Inside[2] = nil
	}
	descriptor.Close(s.Inside[:]...)
	clear(s.Inside[:])
}

// patience is how long a command may run before goroutines read its output into a Result.
// The output of most shorter commands fits into their pipes, and the waiting caller then
// reads it, which is several times cheaper. A command whose output does not fit stops for
// as long, once.
const patience = 2 * time.Millisecond

// Copy starts to copy. Writers of the caller's get the present output at once.
func (s *Streams) Copy() {
	if s.stdin != nil {
		go func() {
			io.Copy(s.input, s.stdin) // the command may stop reading at any time
			s.input.Close()
		}()
	}
	for _, out := range s.Out {
		if _, kept := out.To.(*Capture); !kept {
			s.Begin()
			return
		}
	}
	if len(s.Out) > 0 {
		s.late = time.AfterFunc(patience, s.Begin)
	}
}

// Begin starts the goroutines that copy output, once.
func (s *Streams) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun {
		return
	}
	s.begun = true
	for _, out := range s.Out {
		if out.File == nil {
			out.File, out.Raw = os.NewFile(uintptr(out.Raw), "|1"), -1
		}
		s.copying.Go(func() {
			var from io.Reader = out.File
			if out.Terminal {
				from = terminalReader{out.File}
			}
			out.err = copyAll(out.To, from, out.File, s.over.Load)
			out.File.Close() // a caller that takes no more: the command gets SIGPIPE
		})
	}
}

// Finish returns when all output has been read, with the errors of the caller's writers,
// or with ErrNotTaken when ctx is done first. After ErrNotTaken at most one more write to each of the caller's
// writers can happen. The command's processes are gone by now;
// other processes with an end of a pipe are not waited for.
func (s *Streams) Finish(ctx context.Context) error {
	if s.input != nil {
		s.input.Close()
	}
	if len(s.Out) == 0 {
		return nil
	}
	if s.late != nil {
		s.late.Stop()
	}
	s.mu.Lock()
	begun := s.begun
	s.begun = true
	s.mu.Unlock()
	if !begun {
		return s.takeAll()
	}
	for _, out := range s.Out {
		out.File.SetReadDeadline(time.Now()) //nolint:errcheck // closed: its end was reached
	}
	if err := Await(ctx, &s.copying); err != nil {
		s.over.Store(true)
		return err
	}
	var errs []error
	for _, out := range s.Out {
		errs = append(errs, out.err)
	}
	return errors.Join(errs...)
}

// Await waits for the goroutines that copy output. ErrNotTaken says that ctx was done
// first.
func Await(ctx context.Context, copying *sync.WaitGroup) error {
	if ctx.Done() == nil {
		copying.Wait()
		return nil
	}
	taken := make(chan struct{})
	go func() { // outlives the call if the caller never takes anything
		copying.Wait()
		close(taken)
	}()
	select {
	case <-taken:
		return nil
	case <-ctx.Done():
		return ErrNotTaken
	}
}

// takeAll reads output that no goroutine copied, all of which is in the pipes.
func (s *Streams) takeAll() error {
	b := Buffers.Get().(*[]byte)
	defer Buffers.Put(b)
	var errs []error
	for _, out := range s.Out {
		for {
			n := readNow(out.Raw, *b)
			if n == 0 {
				break
			}
			if _, err := out.To.Write((*b)[:n]); err != nil {
				errs = append(errs, err)
				break
			}
		}
		unix.Close(out.Raw)
		out.Raw = -1
	}
	return errors.Join(errs...)
}

// Abandon closes the files of a command that was not started.
func (s *Streams) Abandon() {
	if s.input != nil {
		s.input.Close()
	}
	for _, out := range s.Out {
		unix.Close(out.Raw)
	}
	s.Out = nil
}
