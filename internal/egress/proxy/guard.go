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

	"github.com/sandbox-runtime/sandbox-runtime/internal/egress/rules"
	"github.com/sandbox-runtime/sandbox-runtime/netns/special"
)

// A deniedError says that no rule opens an address.
type deniedError struct{ rule, reason string }

func (e *deniedError) Error() string { return e.reason }

// judgeAddress judges an address to which an allowed name leads.
func (b *Sandbox) judgeAddress(name string, a netip.AddrPort) error {
	v := b.Rules.Address(a.Addr(), a.Port())
	switch {
	case v.IsDenied():
		return &deniedError{v.Rule, v.Reason}
	case a.Addr().Zone() != "":
		return &deniedError{v.Rule, fmt.Sprintf("%s leads to %s; an address with a zone cannot be allowed", name, a)}
	case b.IsHost(a.Addr()):
		return openHost(v, fmt.Sprintf("%s leads to %s, an address of the host itself; add --allow %s", name, a, a))
	case !v.Allowed && special.Contains(a.Addr()):
		return &deniedError{v.Rule, fmt.Sprintf("%s leads to %s, which is not a public address; add --allow %s", name, a, a)}
	}
	return nil
}

// openHost wants a rule for the one address.
func openHost(v rules.Verdict, reason string) error {
	if v.Allowed && v.IsSingle {
		return nil
	}
	return &deniedError{v.Rule, reason}
}

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
	mu.Lock()
	defer mu.Unlock()
	if err != nil && denied != nil {
		return nil, denied
	}
	return c, err
}

// dialAddress connects to an address that a rule has allowed.
func dialAddress(ctx context.Context, a netip.AddrPort) (*net.TCPConn, error) {
	return dial(ctx, net.Dialer{Timeout: connectTime}, a.Addr().String(), a.Port())
}

func dial(ctx context.Context, d net.Dialer, host string, port uint16) (*net.TCPConn, error) {
	d.SetMultipathTCP(false) // it has no splice(2)
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil //nolint:forcetypeassert // of TCP
}
