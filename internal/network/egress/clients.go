package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// maxClients is how many clients the parent serves at a time. Others wait.
const maxClients = 64

// serve answers the clients.
func (p *parent) serve(l *net.UnixListener) {
	slots := make(chan struct{}, maxClients)
	slots <- struct{}{}
	_ = descriptor.AcceptAll(l.AcceptUnix, func(conn *net.UnixConn) { // ends with the process
		go func() {
			d := p.serveClient(conn)
			<-slots
			if d != nil {
				p.serveDecider(d)
			}
		}()
		slots <- struct{}{}
	}, nil)
}

// clientTime bounds the time of a client for its request.
const clientTime = 10 * time.Second

// serveClient answers the request of a client. It returns a decider if the client has become one.
func (p *parent) serveClient(conn *net.UnixConn) (d *decider) {
	isOwn := isOwner(conn)
	channel, err := channel.OfConn(conn, link.MaxSockets)
	if err != nil {
		return nil
	}
	defer func() {
		if d == nil {
			channel.Discard()
			channel.Close()
		}
	}()
	if !isOwn {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), clientTime)
	defer cancel()
	body, files, err := channel.Receive(ctx, link.MaxOrder)
	if err != nil {
		return nil
	}
	a, d := p.answer(channel, body, files)
	body, err = json.Marshal(a)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), clientTime)
		defer cancel()
		err = channel.Send(ctx, body)
	}
	if err != nil && d != nil { // the client has gone
		p.removeDecider(d)
		return nil
	}
	return d
}

// isOwner says whether the client has the user of this process.
func isOwner(conn *net.UnixConn) bool {
	var peer *unix.Ucred
	err := descriptor.Use(conn, func(fd int) (err error) {
		peer, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return err == nil && int(peer.Uid) == os.Geteuid()
}

// answer carries out a request. It takes the files over. The channel belongs to a decider afterwards, if
// there is one.
func (p *parent) answer(channel *channel.Conn, body []byte, files []*os.File) (a answer, d *decider) {
	var r request
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields() // a client of a newer version may send a rule that this version would leave out
	err := strict.Decode(&r)
	if err == nil {
		err = r.check(files)
	}
	if err != nil {
		descriptor.Close(files...)
		return answer{Error: err.Error()}, nil
	}
	switch r.Op {
	case opAdmit, opChange, opSuspend, opWithhold, opDismiss:
		err = p.carryOut(channel, r, files)
	case opDecide:
		d, err = p.addDecider(channel, r.Key)
	case opHas:
		err = p.look(r.Key, func(b *box) { a.IsServed, a.IsWithheld = !b.isSuspended, b.isWithheld })
	case opCounts:
		if err = p.settle(r.Key); err == nil {
			err = p.look(r.Key, func(b *box) { a.Counts = b.record.counts })
		}
	}
	if err == nil && r.Op != opHas && r.Op != opCounts {
		err = p.await()
	}
	if err != nil {
		a.Error, a.IsUnknown = err.Error(), errors.Is(err, ErrUnknown)
		if d != nil {
			p.removeDecider(d)
		}
		return a, nil
	}
	return a, d
}

// errGone means that the client waits for no answer.
var errGone = errors.New("the client has gone")

// carryOut changes a box, and takes the files over. Nothing changes if the client has gone: the request of its
// successor may have come first.
func (p *parent) carryOut(channel *channel.Conn, r request, files []*os.File) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if hasGone(channel) {
		descriptor.Close(files...)
		return errGone
	}
	switch r.Op {
	case opAdmit:
		return p.admitLocked(*r.Box, r.Roles, files)
	case opChange:
		return p.changeLocked(*r.Box)
	case opSuspend:
		return p.suspendLocked(r.Key, false)
	case opWithhold:
		return p.suspendLocked(r.Key, true)
	case opDismiss:
		return p.dismissLocked(r.Key)
	default:
		return fmt.Errorf("%q changes no sandbox", r.Op)
	}
}

// hasGone says whether this end or the other end is closed.
func hasGone(channel *channel.Conn) bool {
	polled := []unix.PollFd{{Events: unix.POLLRDHUP}}
	isOpen := false
	err := channel.Control(func(fd uintptr) {
		polled[0].Fd = int32(fd)
		n, err := descriptor.Retry(func() (int, error) { return unix.Poll(polled, 0) })
		isOpen = n == 0 && err == nil
	})
	return err != nil || !isOpen
}

func (r request) check(files []*os.File) error {
	hasBox := r.Op == opAdmit || r.Op == opChange
	switch {
	case !isKey(r.Key), (r.Box != nil) != hasBox, hasBox && r.Box.Key != r.Key:
		return errors.New("a request has no key, or another box than that of the operation")
	case len(files) != len(r.Roles), (len(files) > 0) != (r.Op == opAdmit):
		return fmt.Errorf("a request has %d sockets and %d roles", len(files), len(r.Roles))
	case !slices.Contains([]op{opAdmit, opChange, opSuspend, opWithhold, opDismiss, opHas, opCounts, opDecide}, r.Op):
		return fmt.Errorf("a request for %q", r.Op)
	}
	for i, role := range r.Roles {
		if err := checkSocket(files[i], role); err != nil {
			return fmt.Errorf("socket %d: %w", i, err)
		}
	}
	return nil
}

// checkSocket refuses a socket that the worker could not use.
func checkSocket(f *os.File, role link.Role) error {
	protocol, isListening := unix.IPPROTO_TCP, 1
	switch role {
	case link.Streams, link.DNSStreams:
	case link.DNSPackets:
		protocol, isListening = unix.IPPROTO_UDP, 0
	default:
		return fmt.Errorf("its role is %q", role)
	}
	return descriptor.Use(f, func(fd int) error {
		for option, want := range map[int]int{unix.SO_PROTOCOL: protocol, unix.SO_ACCEPTCONN: isListening} {
			got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
			if err != nil {
				return os.NewSyscallError("getsockopt", err)
			}
			if got != want {
				return fmt.Errorf("it cannot be one for %s", role)
			}
		}
		return nil
	})
}
