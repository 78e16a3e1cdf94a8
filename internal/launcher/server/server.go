package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/fault"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// A Server serves one launcher to any number of connections. It is made by New
// and ended by Shutdown.
type Server struct {
	core    Core
	rules   Rules
	log     *slog.Logger
	handles *handles
	events  *events
	// clients logs the actions of clients.
	clients  *clientLog
	refusals *refusals
	// descriptors are those that all users may still have.
	descriptors *semaphore.Weighted

	// ctx is cancelled when all calls must end. draining is cancelled when only calls that wait
	// must end.
	ctx, draining context.Context
	cancel, drain context.CancelFunc

	// joins counts the calls whose transaction joins, until the client has the Result.
	joins atomic.Int64

	// mu guards the fields below.
	mu    sync.Mutex
	peers map[uint32]*peer
	// calls counts the calls under way. idle is closed when there are no calls and the server
	// takes no more.
	calls int
	idle  chan struct{}
	// work counts the trunks.
	work sync.WaitGroup
}

// memoryLimit is for debug.SetMemoryLimit. With gcPercent alone the garbage of a client's
// long requests could be four times the memory in use.
const memoryLimit = 256 << 20

// gcPercent is for debug.SetGCPercent. Few allocations of a launcher stay in use. So with 16 MiB
// more memory the launcher collects garbage four times less often, which saves a twentieth of the
// cost of an exec.
const gcPercent = 400

// Tune sets up the Go runtime of a process that is a launcher and nothing else. Settings in the
// environment stay.
//
// Half of the processors are for the sandboxes. With threads for all processors, each event
// would wake one more thread, which would find no work. Threads that block in a system call do
// not count.
func Tune() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
}

// New returns a server of a launcher.
func New(core Core, rules Rules, log *slog.Logger) *Server {
	s := &Server{
		core: core, rules: rules, log: log,
		peers: map[uint32]*peer{}, idle: make(chan struct{}),
		clients: newClientLog(log), refusals: newRefusals(), descriptors: semaphore.NewWeighted(maxDescriptors),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.draining, s.drain = context.WithCancel(s.ctx)
	s.handles = newHandles(core)
	s.events = newEvents(s.handles, core, s.clients.forAll())
	return s
}

// A Source accepts connections, such as a *net.UnixListener.
type Source interface {
	AcceptUnix() (*net.UnixConn, error)
}

// Serve takes connections from a listener until the listener is closed. Then it returns nil.
func (s *Server) Serve(l Source) error {
	err := descriptor.AcceptAll(l.AcceptUnix, func(conn *net.UnixConn) {
		if err := s.Take(conn); err != nil {
			s.logRefused(err)
		}
	}, func(err error) error {
		if s.ctx.Err() != nil {
			return net.ErrClosed
		}
		for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ECONNABORTED} {
			if errors.Is(err, passing) { // the host or the process has no free descriptors or memory now
				s.clients.forAll().Error("accept a connection", "error", err)
				return nil
			}
		}
		return err
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) logRefused(err error) {
	uid := uint32(overflowUID) // of a client that the kernel does not name
	if r, ok := errors.AsType[*refusal](err); ok {
		uid, err = r.uid, r.err
	}
	s.clients.forUser(uid).Warn("a client's connection was not taken", "error", err)
}

// Take takes over a connection, serves it in the background, and returns.
func (s *Server) Take(conn *net.UnixConn) error {
	_, err := s.acceptConn(conn)
	return err
}

// ServeConn takes over a connection and serves it. It returns after the end of the connection and
// of all its calls.
func (s *Server) ServeConn(conn *net.UnixConn) error {
	done, err := s.acceptConn(conn)
	if err != nil {
		return err
	}
	<-done
	return nil
}

// Connect returns the socket of a client of this server in the same process.
func (s *Server) Connect() (*net.UnixConn, error) {
	ours, theirs, err := descriptor.UnixPair()
	if err != nil {
		return nil, err
	}
	if err := s.Take(ours); err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	return descriptor.UnixConn(theirs)
}

// acceptConn begins to serve a connection. The returned channel is closed at the connection's end.
func (s *Server) acceptConn(conn *net.UnixConn) (<-chan struct{}, error) {
	uid, groups, err := peerOf(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	channel, err := channel.OfConn(conn, 1)
	if err != nil {
		return nil, err
	}
	return s.takeFrom(channel, uid, groups)
}

func (s *Server) takeFrom(channel *channel.Conn, uid uint32, groups []uint32) (<-chan struct{}, error) {
	done := make(chan struct{})
	if err := s.admit(channel, uid, groups, done); err != nil {
		s.refusals.refuse(channel, uid, err)
		return nil, &refusal{uid, err}
	}
	return done, nil
}

// admit starts to serve a connection if its user has a rule.
func (s *Server) admit(channel *channel.Conn, uid uint32, groups []uint32, done chan struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Err() != nil {
		return errEnding
	}
	p := s.peers[uid]
	if p == nil {
		rule := s.rules.forUser(uid)
		if rule == nil {
			return refused("the launcher has no rule for user %d; run this as root, or ask root for a rule in the file of the launcher's --rules (docs/launcher.md)", uid)
		}
		p = newPeer(rule, s.descriptors)
		s.peers[uid] = p
	}
	if err := p.takeDescriptors(1); err != nil {
		return err
	}
	t := newTrunk(s, channel, p, groups)
	s.work.Go(func() {
		defer close(done)
		defer p.leaveDescriptors(1)
		t.serve()
	})
	return nil
}

// peerOf returns the user at the other end, and the user's groups at the time of the connection,
// the primary group first (unix(7), SO_PEERCRED; SO_PEERGROUPS, Linux 4.13).
func peerOf(conn *net.UnixConn) (uid uint32, groups []uint32, err error) {
	var cred *unix.Ucred
	err = descriptor.Use(conn, func(fd int) (err error) {
		if cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			groups, err = peerGroups(fd)
		}
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("user of the connection: %w", err)
	}
	return cred.Uid, append([]uint32{cred.Gid}, groups...), nil
}

// peerGroups are the supplementary groups of a socket's peer.
func peerGroups(fd int) ([]uint32, error) {
	size := 64 // number of groups; the kernel returns a larger number if needed
	for {
		groups := make([]uint32, size)
		length := uint32(4 * size)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&length)), 0)
		switch n := int(length) / 4; {
		case errno == 0:
			return groups[:n], nil
		case errno == unix.ERANGE && n > size:
			size = n
		default:
			return nil, fmt.Errorf("getsockopt SO_PEERGROUPS: %w", errno)
		}
	}
}

var errEnding = fmt.Errorf("%w: the launcher is ending", fault.ErrUnavailable)

// beginCall counts a call, unless the server is ending.
func (s *Server) beginCall() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Err() != nil {
		return errEnding
	}
	s.calls++
	return nil
}

func (s *Server) endCall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	s.closeIdleLocked()
}

func (s *Server) closeIdleLocked() {
	if s.calls > 0 || s.draining.Err() == nil {
		return
	}
	select {
	case <-s.idle:
	default:
		close(s.idle)
	}
}

// Shutdown takes no more calls, waits for the calls under way until ctx ends, and then ends the
// rest, except transactions that join: these end by themselves, and their clients get the Result.
// Sandboxes stay up, except sandboxes that are tied to a connection. Shutdown leaves no goroutine
// behind. So clients can make it take any time: see endAfter.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.drain()
	s.closeIdleLocked()
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
	}
	s.cancel()
	s.work.Wait()
	s.refusals.end()
	s.handles.close()
}

// adoptTime bounds how long one sandbox may take to be adopted.
const adoptTime = 30 * time.Second

// Adopt ends the commands that a dead launcher has left in the sandboxes that are up. Without
// Adopt these commands would end only when a client uses their sandbox.
func (s *Server) Adopt(ctx context.Context) {
	all, err := s.core.List(ctx, nil)
	if err != nil {
		s.log.Error("list the sandboxes that are up", "error", err)
	}
	var adopting errgroup.Group
	adopting.SetLimit(4)
	for _, i := range all {
		if i.State == spec.StateStopped {
			continue
		}
		adopting.Go(func() error {
			s.adopt(ctx, i.ID)
			return nil
		})
	}
	_ = adopting.Wait() // always nil: adopt logs its failures
}

func (s *Server) adopt(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	box, err := s.core.Open(ctx, id)
	if err != nil {
		if !errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrNotRunning) {
			s.log.Error("adopt a sandbox", "id", id, "error", err)
		}
		return
	}
	box.Release()
}
