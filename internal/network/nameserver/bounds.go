package nameserver

import (
	"errors"
	"net"
)

// The bounds of one sandbox, over UDP and TCP together.
const (
	QueryRate  = 200 // queries a second
	QueryBurst = 500 // queries at once after a pause
	// A connection to a name server takes an entry of the host's table of connections for two minutes. So a sandbox
	// has 1,024 such entries at most.
	StreamRate  = 8 // connections to name servers a second
	StreamBurst = 32
)

// ErrTooMany is the error of a lookup above the bounds.
var ErrTooMany = errors.New("the sandbox looks up too many names; wait a second")

// IsTooMany says that a lookup has failed with ErrTooMany. Package net keeps only the text of such an error.
func IsTooMany(failed *net.DNSError) bool { return failed.Err == ErrTooMany.Error() }
