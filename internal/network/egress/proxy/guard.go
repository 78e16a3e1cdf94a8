package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/names"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
)

// A deniedError says that no rule opens a name, a request or an address.
type deniedError struct {
	rule string
	// reason is the whole reason, for the event.
	reason string
	// told is the reason for the client. It tells nothing about the host: neither an address to which a name leads,
	// nor the kind of an address.
	told string
}

func (e *deniedError) Error() string { return e.reason }

// denied is an error whose reason the client may read.
func denied(v rules.Verdict) *deniedError { return &deniedError{v.Rule, v.Reason, v.Reason} }

// judgeDestination judges a destination without a name. A synthetic address without a name, and an address
// of the sandbox itself, has no rule. Clients are told the same about an address of the host as about an address
// without a rule.
func (b *Sandbox) judgeDestination(to netip.AddrPort) (rules.Verdict, *deniedError) {
	v := b.Rules.Destination(to.Addr(), to.Port())
	switch {
	case !v.Allowed, names.Reserved(to.Addr()):
		return v, denied(v)
	case !OpensDestination(v, b.IsHost(to.Addr())):
		reason := fmt.Sprintf("%s is an address of the host itself; add --allow %s", to, to)
		return v, &deniedError{v.Rule, reason, rules.MissingAddress(to).Reason}
	}
	return v, nil
}

// judgeAddress judges an address to which an allowed name leads. Clients are told the same about each refused address.
func (b *Sandbox) judgeAddress(name string, a netip.AddrPort) error {
	v := b.Rules.Address(a.Addr(), a.Port())
	isHost := b.IsHost(a.Addr())
	var reason string
	switch {
	case v.IsDenied():
		reason = v.Reason
	case a.Addr().Zone() != "":
		reason = fmt.Sprintf("%s leads to %s; an address with a zone cannot be allowed", name, a)
	case OpensServer(v, a.Addr(), isHost):
		return nil
	case isHost:
		reason = fmt.Sprintf("%s leads to %s, an address of the host itself; add --allow %s", name, a, a)
	default:
		reason = fmt.Sprintf("%s leads to %s, which is not a public address; add --allow %s", name, a, a)
	}
	told := name + ` leads to an address that is not allowed; on the host, "sandbox-runtime network --log" has the rule to add`
	return &deniedError{v.Rule, reason, told}
}

// OpensServer says whether a verdict of [Rules.Address] lets an allowed name lead to the address. A public address
// needs no rule.
func OpensServer(v rules.Verdict, a netip.Addr, isHost bool) bool {
	return !v.IsDenied() && a.Zone() == "" && (OpensDestination(v, isHost) || !isHost && !special.Contains(a))
}

// OpensDestination says whether a verdict of [Rules.Destination] opens an address. An address of the host needs a
// rule for this one address.
func OpensDestination(v rules.Verdict, isHost bool) bool { return v.Allowed && (v.IsSingle || !isHost) }

// dialName connects to a server of the name. The check is on each address that is really dialled, so a
// name cannot change its address after the check.
func (b *Sandbox) dialName(ctx context.Context, name string, port uint16) (*net.TCPConn, error) {
	var (
		mu       sync.Mutex
		attempts int
		denied   *deniedError
	)
	d := net.Dialer{Timeout: connectTime, Resolver: b.Resolver, Control: func(_, address string, _ syscall.RawConn) error {
		a, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if attempts++; attempts > maxAddresses {
			return fmt.Errorf("%d addresses were tried", maxAddresses)
		}
		err = b.judgeAddress(name, a)
		errors.As(err, &denied)
		return err
	}}
	c, err := dial(ctx, d, name+".", port) // the dot: no search domain of the host is tried
	if err == nil {
		// Two addresses can be dialled at a time. The rules must know the one of the connection.
		if err = b.judgeAddress(name, addressOf(c)); err != nil {
			reset(c)
			return nil, err
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if err != nil && denied != nil {
		return nil, denied
	}
	if failed, isLookup := errors.AsType[*net.DNSError](err); isLookup {
		return nil, newLookupError(ctx, name, failed)
	}
	return c, err
}

// A lookupError is for the client, too. The error of package net has the addresses of the host and of its name servers.
type lookupError string

func (e lookupError) Error() string { return string(e) }

func newLookupError(ctx context.Context, name string, failed *net.DNSError) error {
	cause := nameserver.LookupCause(failed)
	if ctx.Err() != nil {
		cause = errors.New("the client's connection has ended")
	}
	return lookupError(fmt.Sprintf("look up %s: %v", name, cause))
}

// failureFor is the text for a client whose server was not reached. Errors of package net have the server's address, and
// some have an address of the host.
func failureFor(server string, err error) string {
	var lookup lookupError
	var slow interface{ Timeout() bool }
	cause := "the server cannot be reached"
	switch {
	case errors.As(err, &lookup):
		return lookup.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		cause = "connection refused"
	case errors.As(err, &slow) && slow.Timeout():
		cause = "the server did not answer in time"
	}
	return fmt.Sprintf("connect to %s: %s", server, cause)
}

// addressOf is the address of the other end.
func addressOf(c *net.TCPConn) netip.AddrPort {
	a := c.RemoteAddr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // of TCP
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func dial(ctx context.Context, d net.Dialer, host string, port uint16) (*net.TCPConn, error) {
	d.SetMultipathTCP(false) // it has no splice(2)
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil //nolint:forcetypeassert // of TCP
}
