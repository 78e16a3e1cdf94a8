// Package publisher passes the traffic of ports of the host to ports of one sandbox. It talks to
// hostile programs, so it runs in a process of its own without any privilege. The process is in the
// sandbox's network namespace and has the host's sockets, so no packet is routed between both.
package publisher

import "sync/atomic"

// bounds count the work for one sandbox at one time.
type bounds struct{ streams, peers bound }

type bound struct{ taken atomic.Int64 }

// take is false if most are taken already.
func (b *bound) take(most int64) bool {
	if b.taken.Add(1) > most {
		b.taken.Add(-1)
		return false
	}
	return true
}

func (b *bound) give() { b.taken.Add(-1) }
