package upstream

import (
	"cmp"
	"fmt"
	"net/http"
)

// An Error says why no way leads through an upstream proxy. Its text is for people on the host, and names the proxy
// without user and password.
type Error interface {
	error
	// Inside is the error for the sandbox, without the address of the proxy.
	Inside() string
	// IsDenial says that the destination is not permitted. Otherwise it was not reached.
	IsDenial() bool
}

// An UnreachableError means that a proxy was not reached, or has not answered as a proxy.
type UnreachableError struct {
	// Proxy is the URL without user and password.
	Proxy string
	Err   error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("the upstream proxy %s cannot be used: %v; check its address, or set another one with --upstream-proxy", e.Proxy, e.Err)
}

// Inside implements [Error].
func (e *UnreachableError) Inside() string { return "the upstream proxy of the host cannot be used" }

// IsDenial implements [Error].
func (e *UnreachableError) IsDenial() bool { return false }

func (e *UnreachableError) Unwrap() error { return e.Err }

// A RefusedError is the answer of a proxy that opens no way to the server.
type RefusedError struct {
	// Proxy is the URL without user and password.
	Proxy string
	// Asked is the request, such as "CONNECT example.com:443".
	Asked  string
	Status int
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("the upstream proxy %s answers %s with %s; ", e.Proxy, e.Asked, e.status())
	switch {
	case e.Status == http.StatusProxyAuthRequired:
		return text + "give it a user and a password that it accepts, as in --upstream-proxy http://USER:PASSWORD@HOST:PORT (only the scheme Basic is spoken)"
	case e.IsDenial():
		return text + "the operator of the proxy can allow that"
	}
	return text + "the server may be down, or the proxy does not know it"
}

func (e *RefusedError) status() string {
	return fmt.Sprintf("%d %s", e.Status, cmp.Or(http.StatusText(e.Status), "(unknown)"))
}

// Inside implements [Error].
func (e *RefusedError) Inside() string {
	return fmt.Sprintf("the upstream proxy of the host answers %s with %s", e.Asked, e.status())
}

// IsDenial implements [Error].
func (e *RefusedError) IsDenial() bool { return e.Status < http.StatusInternalServerError }

// A ForbiddenError means that a destination must not be asked of a proxy.
type ForbiddenError struct{ Reason string }

func (e *ForbiddenError) Error() string { return e.Inside() }

// Inside implements [Error].
func (e *ForbiddenError) Inside() string { return "not asked of the upstream proxy: " + e.Reason }

// IsDenial implements [Error].
func (e *ForbiddenError) IsDenial() bool { return true }
