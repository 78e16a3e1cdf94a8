package egress

import (
	"sync"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
)

// settle has the worker report all counts of a box until now. Otherwise a report could still be on its way
// when the client asks for the counts. A worker that ends meanwhile has no more counts.
func (p *parent) settle(key string) error {
	number, settled := p.orderSettle(key)
	if settled == nil {
		return nil
	}
	defer p.settlements.end(number)
	late := time.NewTimer(ackTime)
	defer late.Stop()
	select {
	case <-settled:
		return nil
	case <-late.C:
		return errSlow
	}
}

// orderSettle returns nil if there is nothing to wait for.
func (p *parent) orderSettle(key string) (number uint64, settled <-chan struct{}) {
	p.changing.Lock()
	defer p.changing.Unlock()
	b := p.boxByKey(key)
	if b == nil || len(b.files) == 0 || p.worker == nil {
		return 0, nil
	}
	number, settled = p.settlements.begin()
	send(p.worker, link.Order{Number: b.number, Settle: number}, nil)
	return number, settled
}

// settlements are the orders Settle that the worker has not carried out.
type settlements struct {
	mu   sync.Mutex // guards the others
	last uint64     // the last number
	open map[uint64]chan struct{}
}

// begin numbers an order. The channel is closed when the worker has reported all counts, or has ended.
func (s *settlements) begin() (number uint64, settled <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.open[s.last] = make(chan struct{})
	return s.last, s.open[s.last]
}

// end forgets an order, also one that the worker has not carried out. A hostile worker can report any number.
func (s *settlements) end(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if settled, ok := s.open[number]; ok {
		delete(s.open, number)
		close(settled)
	}
}

// endAll ends all waits for reports: the worker has ended.
func (s *settlements) endAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, settled := range s.open {
		close(settled)
	}
	clear(s.open)
}
