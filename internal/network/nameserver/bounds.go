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

// LookupCause is the reason of a failed lookup, without the addresses of the host and of its name servers.
func LookupCause(failed *net.DNSError) error {
	switch {
	case failed.Err == ErrTooMany.Error(): // package net keeps only the text
		return ErrTooMany
	case failed.IsNotFound:
		return errors.New("no such host")
	case failed.IsTimeout:
		return errors.New("the host's name servers did not answer in time")
	}
	return errors.New("the host's name servers answer with an error, or cannot be reached")
}
