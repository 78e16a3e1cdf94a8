// Package publisher passes the traffic of ports of the host to ports of one sandbox. It talks to
// hostile programs, so it runs in a process of its own without any privilege. The process is in the
// sandbox's network namespace and has the host's sockets, so no packet is routed between both.
package publisher

import "sync/atomic"

// counters count the present work for one sandbox.
type counters struct{ streams, peers counter }

type counter struct{ taken atomic.Int64 }

// acquire counts one more piece of work. It returns false if that would exceed most.
func (b *counter) acquire(most int64) bool {
	if b.taken.Add(1) > most {
		b.taken.Add(-1)
		return false
	}
	return true
}

func (b *counter) release() { b.taken.Add(-1) }
