// Package proxy serves the connections that a sandbox's network namespace captures: which name is
// meant, do the rules allow the connection, which address does the name have, may the sandbox reach
// this address. Then the package copies bytes and counts them. Everything that a client sends is
// hostile.
//
// A connection to a synthetic address has one name. TLS must ask for this name (SNI), and each
// request of plain HTTP must as well. A connection to another address has no name: only rules for
// addresses count, and nothing inside is judged.
//
// A program that asks a proxy connects to the explicit proxy of the sandbox. Each of its requests is
// judged like a captured connection to the host and port of the request.
package proxy

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
)

const (
	// idleTime is how long a connection may be silent in both directions.
	idleTime = time.Hour
	// connectTime bounds the search for an address and the connection to it.
	connectTime = 15 * time.Second
	// maxAddresses is how many addresses of a name are tried.
	maxAddresses = 16
)

// Rules decide. The proxy asks for each connection and each request anew. Several goroutines ask at once.
// The first three are those of a *rules.List.
type Rules interface {
	Connect(name string, port uint16) rules.Verdict
	Request(name string, port uint16, method, path string) rules.Verdict
	// Address judges an address of a server.
	Address(a netip.Addr, port uint16) rules.Verdict
	// Destination judges the destination of a connection that has no name.
	Destination(a netip.Addr, port uint16) rules.Verdict
}

// A Sandbox has the rules and the names of a sandbox, for one connection or for several.
type Sandbox struct {
	Rules Rules
	Names *names.Table
	// Resolver finds the addresses of allowed names, outside of the sandbox.
	Resolver *net.Resolver
	// Search are the search domains of the host, in lower case.
	Search []string
	// Exists says whether the sandbox can look a name up. A nil Exists is false for each name.
	Exists func(name string) bool
	// Upstream chooses the upstream proxies of destinations. A nil Upstream chooses none.
	Upstream *upstream.Proxies
	// Hint is a way out for servers that are not reached directly. It may be empty.
	Hint string
	// IsHost is true for the host's own addresses. Only a rule for this one address opens one.
	IsHost func(netip.Addr) bool
	// Report gets one event at the end of each connection, from the goroutine of the connection. A
	// connection to the explicit proxy has one for each host.
	Report func(Event)
	// Ask judges a connection or a request that no rule covers. A call may take long. Method and path are empty for
	// a connection. A nil Ask refuses.
	Ask func(ctx context.Context, name string, port uint16, method, path string) rules.Verdict

	// ClientBuffer and ServerBuffer are the sizes of the socket's buffers toward the client and the server, for each
	// direction, in bytes. The kernel doubles them for its own data. Zero leaves the size to the kernel.
	ClientBuffer, ServerBuffer int

	// Meter is called soon after bytes were copied. An error ends the connection. A nil Meter bounds nothing.
	Meter func() error
}

// A Decision is the end of a connection.
type Decision string

// The decisions.
const (
	Allowed Decision = "allowed"
	Denied  Decision = "denied"
	Failed  Decision = "failed" // it was allowed, and the server was not reached
)

// An Event describes a connection that has ended.
type Event struct {
	Time     time.Time // of the beginning
	Duration time.Duration
	Name     string         // empty: a connection to an address
	Port     uint16         // of the destination
	Address  netip.AddrPort // the server's, or the destination's if there is no name; may be zero
	Upstream string         // the proxy of the host's network that was asked, without its password; may be empty
	Sent     int64          // bytes from the sandbox to the server
	Received int64
	Decision Decision
	Rule     string // the one that decided last
	Reason   string // of a connection that is not allowed; parts that the client chose are quoted
}
