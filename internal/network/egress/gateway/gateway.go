package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/channel"
	"github.com/sandbox-runtime/sandbox-runtime/internal/descriptor"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/internal/process/worker"
)

// TakeOver does not return in a worker that the parent has started. Each program that calls TakeOver of
// package egress calls this TakeOver, too, before it does anything else.
func TakeOver() { takeOver(link.WorkerKind, run) }

func takeOver(kind string, life func(args []string) error) {
	worker.TakeOverConfined(kind, func(_ []string, execute func() error) error {
		if err := errors.Join(limitResources(), worker.RestrictFiles(append(readable(), authorities()...)...)); err != nil {
			return err
		}
		return execute()
	}, life)
}

// run is the life of the worker. Its argument is the number of the parent.
func run(args []string) error {
	runtime.LockOSThread() // for EndWithParent
	if len(args) != 1 {
		return errors.New("the arguments are not a worker's")
	}
	parent, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	shares, err := newShares()
	if err != nil {
		return err
	}
	if err := errors.Join(worker.EndWithParent(parent), confine()); err != nil {
		return err
	}
	channel, err := fileChannel(worker.File(0))
	if err != nil {
		return err
	}
	go func() {
		awaitNewFiles()
		os.Exit(0) // connections fail, as after each change of the worker
	}()
	return newGateway(channel, shares).serve()
}

func fileChannel(f *os.File) (*channel.Conn, error) {
	conn, err := descriptor.UnixConn(f)
	if err != nil {
		return nil, err
	}
	return channel.OfConn(conn, link.MaxFiles)
}

// A gateway serves all boxes.
type gateway struct {
	parent  *channel.Conn
	servers *nameserver.Pool
	shares  *shares
	host    *hostAddresses
	// lastQuestion is the last number of a question. A box that was suspended uses no number again.
	lastQuestion atomic.Uint64

	// mu guards boxes, by their numbers.
	mu    sync.Mutex
	boxes map[uint32]*box
}

func newGateway(parent *channel.Conn, shares *shares) *gateway {
	return &gateway{
		parent: parent, servers: &nameserver.Pool{}, shares: shares, host: &hostAddresses{},
		boxes: map[uint32]*box{},
	}
}

// serve carries out the orders, one after the other, until the parent ends.
func (g *gateway) serve() error {
	go g.meterAll()
	for {
		body, files, err := g.parent.Receive(context.Background(), link.MaxOrder)
		if err != nil {
			return err
		}
		var o link.Order
		if err := json.Unmarshal(body, &o); err != nil {
			descriptor.Close(files...)
			return fmt.Errorf("an order of the parent: %w", err)
		}
		if err := g.take(o, files); err != nil {
			return err
		}
		if o.Sequence != 0 {
			if err := g.report(link.Report{Kind: link.KindAck, Sequence: o.Sequence}); err != nil {
				return err
			}
		}
	}
}

// take carries out one order, and takes the files over.
func (g *gateway) take(o link.Order, files []*os.File) error {
	if o.Number == 0 || o.Box == nil || len(files) != len(o.Roles) {
		descriptor.Close(files...)
	}
	switch {
	case o.Number == 0:
		return nil
	case o.Answer != nil:
		if b := g.box(o.Number); b != nil {
			b.takeAnswer(*o.Answer)
		}
		return nil
	case o.Settle != 0:
		go g.settle(o.Number, o.Settle) // the parent bounds the number of these orders
		return nil
	case o.Box == nil:
		g.dismiss(o.Number)
		return nil
	case len(files) != len(o.Roles):
		return fmt.Errorf("an order has %d sockets and %d roles", len(files), len(o.Roles))
	}
	b, err := g.boxFor(o)
	if err != nil {
		descriptor.Close(files...)
		return err
	}
	if len(files) > 0 {
		b.sockets = len(files)
	}
	g.divide()
	b.change(o.Box, o.Asks)
	if len(files) > 0 {
		b.listen(o.Roles, files)
	}
	return nil
}

// box returns the box with this number, or nil.
func (g *gateway) box(number uint32) *box {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.boxes[number]
}

// boxFor is the box of an order, also a new one.
func (g *gateway) boxFor(o link.Order) (*box, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b, ok := g.boxes[o.Number]; ok {
		return b, nil
	}
	b, err := newBox(g, o)
	if err != nil {
		return nil, err
	}
	g.boxes[o.Number] = b
	return b, nil
}

func (g *gateway) dismiss(number uint32) {
	g.mu.Lock()
	b := g.boxes[number]
	delete(g.boxes, number)
	g.mu.Unlock()
	if b != nil {
		b.close()
		b.mu.Lock()
		b.isDismissed = true
		b.mu.Unlock()
		g.divide()
	}
}

// divide divides the descriptors among the boxes.
func (g *gateway) divide() {
	g.mu.Lock()
	defer g.mu.Unlock()
	sockets := 0
	for _, b := range g.boxes {
		sockets += b.sockets
	}
	g.shares.setBoxes(len(g.boxes), sockets)
}

// settle reports the counts of a box, and the end of that. A box that is not there has none.
func (g *gateway) settle(number uint32, id uint64) {
	if b := g.box(number); b != nil {
		b.settle()
	}
	_ = g.report(link.Report{Kind: link.KindSettled, Number: number, ID: id}) // without a parent the process ends
}

func (g *gateway) report(r link.Report) error {
	return g.parent.Send(context.Background(), r.Bytes())
}

// meterTime is the time between two looks at open connections.
const meterTime = 100 * time.Millisecond

// meterAll counts the bytes of open connections, and ends those of boxes that have used up their bytes.
func (g *gateway) meterAll() {
	for range time.Tick(meterTime) {
		g.mu.Lock()
		boxes := slices.Collect(maps.Values(g.boxes))
		g.mu.Unlock()
		for _, b := range boxes { // without the lock of the gateway: a box can be busy with the requests of its sandbox
			if b.isLimited() {
				b.meter()
			}
		}
	}
}
