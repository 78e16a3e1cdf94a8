package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
)

// A script is a list of system calls for a child process to make, one after the other
// until one fails. The child is a fork of this process that never executes a program. So
// it works in any program that contains this package, needs no file of the host, and can
// do work that a thread of a Go program cannot, such as be in a user namespace of its own.
// A filter that kills the caller of a system call kills the child only.
//
// A script is used once, by one goroutine, and must be freed.
type script struct {
	memory []byte // shared with the child
	used   int
	list   *callList
	names  []string
	err    error // of making it, kept for start
}

const (
	sharedMemory = 16 << 10

	// scriptLimit bounds a child's time, for file systems that hang. A probe takes about a
	// millisecond.
	scriptLimit = 2 * time.Second
)

// An arg is an argument of a system call: a value, or the result of an earlier
// call, by its position plus one.
type arg struct{ value, from uintptr }

// num is an argument that is a number.
func num[N ~int | ~uint | ~uintptr](n N) arg { return arg{value: uintptr(n)} }

func newScript() *script {
	memory, err := unix.Mmap(-1, 0, sharedMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		return &script{err: fmt.Errorf("map %d bytes of shared memory: %w", sharedMemory, err)}
	}
	return &script{
		memory: memory,
		used:   int(unsafe.Sizeof(callList{})),
		list:   (*callList)(unsafe.Pointer(&memory[0])),
	}
}

func (s *script) free() {
	if s.memory != nil {
		_ = unix.Munmap(s.memory)
		s.memory, s.list = nil, nil
	}
}

// buffer reserves n bytes, at least one, that the child and this process see.
func (s *script) buffer(n int) ([]byte, arg) {
	if s.err == nil && s.used+n > len(s.memory) {
		s.err = fmt.Errorf("arguments of more than %d bytes", len(s.memory)-s.used)
	}
	if s.err != nil {
		return make([]byte, n), arg{}
	}
	b := s.memory[s.used : s.used+n : s.used+n]
	s.used += (n + 7) &^ 7
	return b, arg{value: uintptr(unsafe.Pointer(&b[0]))}
}

func (s *script) bytes(data []byte) arg {
	b, a := s.buffer(len(data))
	copy(b, data)
	return a
}

func (s *script) text(t string) arg { return s.bytes(append([]byte(t), 0)) }

// words is a structure of 64-bit numbers, which most of the newer system calls
// take.
func (s *script) words(values ...uint64) arg {
	b, a := s.buffer(8 * len(values))
	for i, v := range values {
		*(*uint64)(unsafe.Pointer(&b[8*i])) = v
	}
	return a
}

// call adds a system call and returns its result, to be an argument of others.
func (s *script) call(name string, number uintptr, args ...arg) arg {
	if s.err == nil && s.list.length == maxCalls {
		s.err = fmt.Errorf("%s is one call too many", name)
	}
	if s.err != nil {
		return arg{}
	}
	c := &s.list.calls[s.list.length]
	c.number = number
	for i, a := range args {
		c.args[i], c.from[i] = a.value, a.from
	}
	s.list.length++
	s.names = append(s.names, name)
	return arg{from: s.list.length}
}

// want makes an error the success of the call that was added last.
func (s *script) want(errno syscall.Errno) {
	if s.err == nil {
		s.list.calls[s.list.length-1].wanted = uintptr(errno)
	}
}

// result is the return value of a call in the child.
func (s *script) result(of arg) int { return int(s.list.calls[of.from-1].result) }

// A callError names the system call of a script that failed.
type callError struct {
	call string
	err  error
}

func (e *callError) Error() string { return e.call + ": " + e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// An idMapper gives the user namespace of a process its ids.
type idMapper func(pid int) error

// run makes the calls in a child with clone(2)'s flags and returns a
// *callError for the first that failed; any other error means that they could
// not be tried. With a mapper the first call waits until it is done.
func (s *script) run(flags uintptr, mapIDs idMapper) error {
	c, err := s.start(flags, mapIDs)
	if err != nil {
		return err
	}
	return c.wait()
}

// runHere makes the calls of a script in a child with nothing new.
func runHere(write func(*script)) error {
	return runScript(write, func(s *script) error { return s.run(0, nil) })
}

// runScript makes a script and runs it.
func runScript(write func(*script), run func(*script) error) error {
	s := newScript()
	defer s.free()
	write(s)
	return run(s)
}

// A child is a process that makes a script's calls. Its goroutine is bound to
// its thread until wait: the child gets SIGKILL when that thread ends.
type child struct {
	script *script
	pid    int
	limit  *time.Timer

	mu     sync.Mutex
	reaped bool // the pid may be another's; kill does nothing
}

func (s *script) start(flags uintptr, mapIDs idMapper) (*child, error) {
	if s.err != nil {
		return nil, s.err
	}
	gateRead, gateWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to a child: %w", err)
	}
	defer gateRead.Close()
	defer gateWrite.Close()

	runtime.LockOSThread()
	c, err := s.fork(flags, mapIDs != nil, gateRead, gateWrite)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	if mapIDs == nil {
		return c, nil
	}
	if err := mapIDs(c.pid); err != nil {
		c.kill()
		_ = c.wait() // says that it was killed
		return nil, err
	}
	if _, err := gateWrite.Write([]byte{1}); err != nil {
		c.kill()
		_ = c.wait()
		return nil, fmt.Errorf("write to a child: %w", err)
	}
	return c, nil
}

// fork makes the child with all signals blocked, so that it never runs a
// handler of Go's, nor is one of Go's threads interrupted in between.
func (s *script) fork(flags uintptr, waits bool, gateRead, gateWrite *os.File) (*child, error) {
	r, w := gateRead.Fd(), gateWrite.Fd()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return nil, fmt.Errorf("block signals: %w", err)
	}
	pid, errno := fork(flags, waits, r, w, s.list)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) // a mask that was in force
	switch errno {
	case 0:
	case unix.ENOMEM, unix.EAGAIN:
		// Of this process's making, not of a namespace's.
		return nil, fmt.Errorf("clone a child: %w", errno)
	default:
		return nil, &callError{call: "clone", err: errno}
	}
	c := &child{script: s, pid: int(pid)}
	c.limit = time.AfterFunc(scriptLimit, c.kill)
	return c, nil
}

func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = unix.Kill(c.pid, unix.SIGKILL)
	}
}

// wait reaps the child and says how the script went.
func (c *child) wait() error {
	defer runtime.UnlockOSThread()
	// A child without an exit signal is waited for with __WALL only: no
	// SIGCHLD is sent for it, and nobody's wait for any child finds it.
	_, err := descriptor.Retry(func() (int, error) {
		return 0, unix.Waitid(unix.P_PID, c.pid, nil, unix.WEXITED|unix.WNOWAIT|unix.WALL, nil)
	})
	c.limit.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reaped = true
	var status unix.WaitStatus
	if err == nil {
		_, err = unix.Wait4(c.pid, &status, unix.WALL, nil)
	}
	if err != nil {
		return fmt.Errorf("wait for a child: %w", err)
	}
	return c.script.outcome(status)
}

// errKills is the cause if a filter on this process kills the caller of the system call.
var errKills = errors.New("a seccomp filter kills the caller")

func (s *script) outcome(status unix.WaitStatus) error {
	for i, name := range s.names {
		c := &s.list.calls[i]
		errno := syscall.Errno(c.errno)
		switch {
		case c.state != returned && status.Signaled() && status.Signal() == unix.SIGSYS:
			return &callError{call: name, err: errKills}
		case c.state != returned:
			return fmt.Errorf("%s: no answer: the child got %v", name, status.Signal())
		case c.errno == c.wanted:
		case c.errno == 0:
			return &callError{call: name, err: fmt.Errorf("no error where %w was expected", syscall.Errno(c.wanted))}
		default:
			return &callError{call: name, err: errno}
		}
	}
	return nil
}
