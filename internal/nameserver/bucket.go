package nameserver

import (
	"errors"
	"net"
	"sync"
	"time"
)

// ErrTooMany is the error of a lookup above the bound of a [Bucket].
var ErrTooMany = errors.New("the sandbox looks up too many names; wait a second")

// IsTooMany says that a lookup has failed with ErrTooMany. Package net keeps only the text of such an error.
func IsTooMany(failed *net.DNSError) bool { return failed.Err == ErrTooMany.Error() }

// A Bucket bounds the rate of events: a token bucket, which is full at first. It is for all goroutines.
type Bucket struct {
	perSecond, burst float64

	mu    sync.Mutex
	spent float64 // of the burst
	at    time.Time
}

// NewBucket is a bucket for a number of events per second, and more after a pause.
func NewBucket(perSecond, burst float64) *Bucket { return &Bucket{perSecond: perSecond, burst: burst} }

// Take is false for an event above the bound.
func (b *Bucket) Take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	spent := max(b.spent-now.Sub(b.at).Seconds()*b.perSecond, 0)
	if spent+1 > b.burst {
		return false
	}
	b.spent, b.at = spent+1, now
	return true
}
