package egress

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/disk/statedir"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// parentKind is the kind of the parent.
const parentKind = "egress"

// TakeOver does not return in a parent that [Egress.Admit] has started. Each program that uses an Egress
// calls TakeOver, and the one of package gateway, before it does anything else.
func TakeOver() { worker.TakeOverPrivileged(parentKind, run) }

// run is the life of the parent. Its arguments are the directory, the time without a sandbox, and the time of
// an embedder for an answer.
func run(args []string) error {
	if len(args) != 3 {
		return errors.New("the arguments are not a parent's")
	}
	idle, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	answerTime, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	socket := worker.File(0)
	if err := closeOthers(socket); err != nil {
		return err
	}
	l, err := net.FileListener(socket)
	if err != nil {
		return err
	}
	socket.Close()
	listener, ok := l.(*net.UnixListener)
	if !ok {
		return errors.New("the control socket is not of unix(7)")
	}
	p := newParent(args[0], answerTime)
	own, err := os.Lstat(p.egress.socket())
	if err != nil {
		return err
	}
	go p.serve(listener)
	go p.endWhenIdle(idle)
	go p.endUnreachable(own)
	p.superviseForever()
	return nil
}

// A parent keeps the state of all boxes.
type parent struct {
	egress Egress
	// answerTime is how long an embedder has for an answer.
	answerTime time.Duration

	// changing is held while the boxes and the worker's knowledge of them change. It guards worker, last,
	// and the sockets and grants of boxes. It is above mu.
	changing sync.Mutex
	worker   *channel.Conn // nil while there is none
	last     uint32        // the last number of a box

	// mu is held for moments. The goroutine that reads the worker's reports needs it.
	mu         sync.Mutex
	boxes      map[uint32]*box
	keys       map[string]*box
	emptySince time.Time // since when there is no box
	// sent is the last sequence that was sent to a worker, acked the last one that is in force.
	sent, acked uint64
	moved       chan struct{} // closed when acked moves
	// asked is the last number of a question.
	asked uint64

	settlements settlements
}

func newParent(dir string, answerTime time.Duration) *parent {
	return &parent{
		egress: Egress{Dir: dir}, answerTime: answerTime, boxes: map[uint32]*box{}, keys: map[string]*box{}, emptySince: time.Now(),
		moved: make(chan struct{}), settlements: settlements{open: map[uint64]chan struct{}{}},
	}
}

// A box is one sandbox. grant, files and roles are guarded by the parent's changing, the rest by its mu.
// A suspended box has no files. isWithheld marks one that Withhold has suspended.
type box struct {
	number      uint32
	grant       Box
	files       []*os.File
	roles       []link.Role
	record      *record
	isSuspended bool
	isWithheld  bool
	// decider is nil if no embedder decides about names without a rule. questions are the open ones, by the numbers of
	// the parent.
	decider   *decider
	questions map[uint64]*question
}

// ackTime is how long the worker has for an order. After that the parent replaces the worker, which then
// has ackTime again.
const ackTime = 5 * time.Second

// errSlow says that the rules may not be in force.
var errSlow = errors.New("the worker of the proxied network does not answer")

// admitLocked adds or replaces a box. It takes the files over.
func (p *parent) admitLocked(grant Box, roles []link.Role, files []*os.File) error {
	b := p.boxByKey(grant.Key)
	if err := p.checkRoomLocked(b, len(files)); err != nil {
		descriptor.Close(files...)
		return err
	}
	if b == nil {
		record, err := openRecord(p.egress.boxDir(grant.Key))
		if err != nil {
			descriptor.Close(files...)
			return err
		}
		p.last++
		b = &box{number: p.last, record: record, questions: map[uint64]*question{}}
	}
	descriptor.Close(b.files...)
	b.files, b.roles = files, roles
	p.mu.Lock()
	p.boxes[b.number], p.keys[grant.Key] = b, b
	b.isSuspended, b.isWithheld = false, false
	b.setGrantLocked(grant)
	p.mu.Unlock()
	p.orderLocked(p.orderOf(b), b.files)
	return nil
}

// changeLocked gives a box new rules.
func (p *parent) changeLocked(grant Box) error {
	b := p.boxByKey(grant.Key)
	if b == nil || len(b.files) == 0 {
		return ErrUnknown
	}
	p.mu.Lock()
	b.setGrantLocked(grant)
	p.mu.Unlock()
	p.orderLocked(p.grantOf(b), nil)
	return nil
}

// setGrantLocked ends the decider if the grant is without Ask. The caller must hold changing, too.
func (b *box) setGrantLocked(grant Box) {
	b.grant = grant
	if b.decider != nil && !grant.Ask {
		b.decider.end()
	}
}

// suspendLocked takes the sockets and the rules from a box. The worker forgets the box. A decider stays for the
// next grant. A mark of an earlier suspension stays.
func (p *parent) suspendLocked(key string, isWithheld bool) error {
	b := p.boxByKey(key)
	if b == nil {
		return ErrUnknown
	}
	descriptor.Close(b.files...)
	b.grant, b.files, b.roles = Box{Key: key}, nil, nil
	p.mu.Lock()
	b.isSuspended, b.isWithheld = true, b.isWithheld || isWithheld
	_ = b.record.makeDir() // the removal of the sandbox dismisses the box if there is a directory
	p.mu.Unlock()
	p.orderLocked(link.Order{Number: b.number}, nil)
	return nil
}

// grantOf is the order that changes the rules of a box.
func (p *parent) grantOf(b *box) link.Order {
	p.mu.Lock()
	defer p.mu.Unlock()
	return link.Order{Number: b.number, Box: &b.grant, Asks: b.hasDecider()}
}

// hasDecider says whether an embedder decides.
func (b *box) hasDecider() bool { return b.grant.Ask && b.decider != nil }

// dismissLocked removes a box with all that it has.
func (p *parent) dismissLocked(key string) error {
	b := p.boxByKey(key)
	if b == nil {
		return ErrUnknown
	}
	descriptor.Close(b.files...)
	p.mu.Lock()
	delete(p.boxes, b.number)
	delete(p.keys, key)
	p.emptySince = time.Now()
	if b.decider != nil {
		b.decider.end()
	}
	err := b.record.remove()
	p.mu.Unlock()
	p.orderLocked(link.Order{Number: b.number}, nil)
	return err
}

// look calls f with a box.
func (p *parent) look(key string, f func(*box)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := p.keys[key]
	if !ok {
		return ErrUnknown
	}
	f(b)
	return nil
}

func (p *parent) boxByKey(key string) *box {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

// orderOf is the order that makes a box.
func (p *parent) orderOf(b *box) link.Order {
	p.mu.Lock()
	defer p.mu.Unlock()
	return link.Order{Number: b.number, Box: &b.grant, Roles: b.roles, Names: b.record.names, Used: b.record.counts, Asks: b.hasDecider()}
}

// orderLocked sends an order to the worker, and asks for its acknowledgement. If there is no worker, the
// next one gets the whole state.
func (p *parent) orderLocked(o link.Order, files []*os.File) {
	p.mu.Lock()
	p.sent++
	o.Sequence = p.sent
	p.mu.Unlock()
	if p.worker != nil {
		send(p.worker, o, files)
	}
}

// send hangs up if the worker does not take the order in time.
func send(worker *channel.Conn, o link.Order, files []*os.File) {
	body, err := json.Marshal(o)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), ackTime)
		defer cancel()
		err = worker.Send(ctx, body, files...)
	}
	if err != nil {
		worker.HangUp()
	}
}

// restore gives a new worker the whole state.
func (p *parent) restore(worker *channel.Conn) {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.worker = worker
	p.mu.Lock()
	boxes := slices.Collect(maps.Values(p.boxes))
	last := link.Order{Sequence: p.sent}
	p.mu.Unlock()
	for _, b := range boxes {
		if len(b.files) > 0 { // else it is suspended
			send(worker, p.orderOf(b), b.files)
		}
	}
	send(worker, last, nil)
}

func (p *parent) forget() {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.worker != nil {
		p.withdrawAll(p.worker)
		p.settlements.endAll()
	}
	p.worker = nil
}

// await waits until all orders until now are in force.
func (p *parent) await() error {
	p.mu.Lock()
	wanted := p.sent
	p.mu.Unlock()
	if p.awaitAck(wanted) {
		return nil
	}
	p.changing.Lock()
	if p.worker != nil {
		p.worker.HangUp()
	}
	p.changing.Unlock()
	if p.awaitAck(wanted) {
		return nil
	}
	return errSlow
}

func (p *parent) awaitAck(wanted uint64) bool {
	late := time.NewTimer(ackTime)
	defer late.Stop()
	for {
		p.mu.Lock()
		acked, moved := p.acked, p.moved
		p.mu.Unlock()
		if acked >= wanted {
			return true
		}
		select {
		case <-moved:
		case <-late.C:
			return false
		}
	}
}

// handleReport takes one report of a worker, which is hostile.
func (p *parent) handleReport(worker *channel.Conn, r link.Report) {
	if r.Kind == link.KindSettled {
		p.settlements.end(r.ID)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Kind == link.KindAck {
		if r.Sequence > p.acked && r.Sequence <= p.sent {
			p.acked = r.Sequence
			close(p.moved)
			p.moved = make(chan struct{})
		}
		return
	}
	b, ok := p.boxes[r.Number]
	if !ok {
		return // dismissed
	}
	switch r.Kind {
	case link.KindName:
		b.record.addName(r.Name)
	case link.KindEvent:
		b.record.addEvent(r.Line, r.Counts)
	case link.KindQuestion:
		p.askLocked(worker, b, r)
	case link.KindWithdrawal:
		b.withdrawLocked(worker, r.ID)
	}
}

// endWhenIdle ends the process when there has been no box for some time. A client that admits a box holds
// the lock.
func (p *parent) endWhenIdle(idle time.Duration) {
	for {
		p.mu.Lock()
		left := time.Until(p.emptySince.Add(idle))
		if len(p.boxes) > 0 {
			left = idle
		}
		p.mu.Unlock()
		if left > 0 {
			time.Sleep(left)
			continue
		}
		if p.tryEnd() {
			os.Exit(0) // the lock ends with the process
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// tryEnd takes the lock, and removes its files if there is still no box.
func (p *parent) tryEnd() bool {
	f, err := os.OpenFile(p.egress.Dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return !statedir.Exists(p.egress.Dir)
	}
	if got, _ := descriptor.TryLock(f); !got { // the next try follows
		f.Close()
		return false
	}
	p.mu.Lock()
	isIdle := len(p.boxes) == 0
	p.mu.Unlock()
	if !isIdle {
		f.Close()
		return false
	}
	os.Remove(filepath.Join(p.egress.Dir, boxesName)) // it stays if a killed parent has left a sandbox
	os.Remove(p.egress.socket())                      // last: endUnreachable ends the process then
	return true                                       // and no close: see endWhenIdle
}

// socketTime is the time between two looks at the control socket. It is much shorter than the time for which clients
// wait for the ports of a killed parent.
const socketTime = 500 * time.Millisecond

// endUnreachable ends the process when its control socket is gone, or is another one. No client could end its
// service, and the ports would be missing to the next parent.
func (p *parent) endUnreachable(own os.FileInfo) {
	for range time.Tick(socketTime) {
		now, err := os.Lstat(p.egress.socket())
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(own, now) {
			os.Exit(1)
		}
	}
}
