package egress

import "github.com/sandbox-runtime/sandbox-runtime/internal/egress/link"

// settle has the worker report all counts of a box until now. Otherwise a report could still be on its way
// when the client asks for the counts.
func (p *parent) settle(key string) error {
	p.changing.Lock()
	b := p.boxOf(key)
	isServed := b != nil && len(b.files) > 0
	if isServed {
		p.orderLocked(link.Order{Number: b.number, Settle: true}, nil)
	}
	p.changing.Unlock()
	if !isServed {
		return nil // there is nothing to wait for
	}
	return p.await()
}
