package egress

import (
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
	defer p.endSettle(number)
	late := time.NewTimer(ackTime)
	defer late.Stop()
	select {
	case <-settled:
		return nil
	case <-late.C:
		return errSlow
	}
}

// orderSettle returns nil if there is nothing to wait for. The channel is closed when the worker has reported all
// counts, or has ended.
func (p *parent) orderSettle(key string) (number uint64, settled chan struct{}) {
	p.changing.Lock()
	defer p.changing.Unlock()
	b := p.boxByKey(key)
	if b == nil || len(b.files) == 0 || p.worker == nil {
		return 0, nil
	}
	settled = make(chan struct{})
	p.mu.Lock()
	p.lastSettle++
	number = p.lastSettle
	p.settling[number] = settled
	p.mu.Unlock()
	send(p.worker, link.Order{Number: b.number, Settle: number}, nil)
	return number, settled
}

// endSettle forgets an order Settle, also one that the worker has not carried out.
func (p *parent) endSettle(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settledLocked(number)
}

// settledLocked ends the wait for a report. A hostile worker can report any number.
func (p *parent) settledLocked(number uint64) {
	if settled, ok := p.settling[number]; ok {
		delete(p.settling, number)
		close(settled)
	}
}

// settleAll ends all waits for reports: the worker has ended.
func (p *parent) settleAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for number := range p.settling {
		p.settledLocked(number)
	}
}
