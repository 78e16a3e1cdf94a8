package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
)

// proxyOf is a proxy whose connections get the answer after their request.
func proxyOf(t *testing.T, answer func(c net.Conn)) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				if n, _ := c.Read(b); strings.HasSuffix(string(b[:n]), "\r\n\r\n") {
					answer(c)
				}
			}()
		}
	}()
	p, err := newProxy(&url.URL{Scheme: "http", Host: l.Addr().String(), User: url.UserPassword("visitor", "s3cret word")})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// connect asks for a tunnel, and reads the first bytes that come through it.
func connect(ctx context.Context, t *testing.T, p *Proxy) (first string, err error) {
	t.Helper()
	c, err := p.Dial(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := p.Connect(ctx, c, "example.com:443"); err != nil {
		return "", err
	}
	b := make([]byte, 5)
	_, err = io.ReadFull(c, b)
	return string(b), err
}

func sayText(text string) func(c net.Conn) { return func(c net.Conn) { io.WriteString(c, text) } }

// The bytes behind an answer belong to the tunnel, and no byte is lost.
func TestProxiesOpenATunnel(t *testing.T) {
	for name, answer := range map[string]func(c net.Conn){
		"with bytes behind it": sayText("HTTP/1.1 200 Connection established\r\n\r\nfirst"),
		"of HTTP/1.0":          sayText("HTTP/1.0 200 OK\r\nProxy-Agent: old\r\n\r\nfirst"),
		"after interim ones":   sayText("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nfirst"),
		"with a length":        sayText("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"), // RFC 9110, section 9.3.6: no body
		"in single bytes": func(c net.Conn) {
			for _, b := range []byte("HTTP/1.1 200 OK\r\nX: y\r\n\r\nfirst") {
				c.Write([]byte{b})
			}
		},
		"without CR":             sayText("HTTP/1.1 200 OK\nX: y\n\nfirst"),
		"with 201":               sayText("HTTP/1.1 201 Created\r\n\r\nfirst"),
		"and a half-closed peer": func(c net.Conn) { sayText("HTTP/1.1 200 OK\r\n\r\nfirst")(c); c.(*net.TCPConn).CloseWrite() },
	} {
		if first, err := connect(t.Context(), t, proxyOf(t, answer)); first != "first" || err != nil {
			t.Errorf("an answer %s: %q, error %v", name, first, err)
		}
	}
}

func TestHostileProxiesAreBounded(t *testing.T) {
	endless := func(part string) func(c net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, part); err != nil {
					return
				}
			}
		}
	}
	for name, x := range map[string]struct {
		answer func(c net.Conn)
		want   string
	}{
		"an endless line":       {endless("HTTP/1.1 200 OK"), "more than 65536 bytes"},
		"endless fields":        {endless("X: y\r\n"), "more than 65536 bytes"},
		"endless interim ones":  {endless("HTTP/1.1 100 Continue\r\n\r\n"), "more than 65536 bytes"},
		"another protocol":      {sayText("SSH-2.0-x\r\n\r\n"), "not of HTTP"},
		"a change of protocol":  {sayText("HTTP/1.1 101 Switching Protocols\r\n\r\n"), "changes the protocol"},
		"no answer":             {sayText(""), "closed the connection without an answer"},
		"a part of an answer":   {sayText("HTTP/1.1 200 OK\r\n"), "closed the connection without an answer"},
		"a reset":               {func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) }, "connection reset by peer"},
		"silence":               {func(c net.Conn) { io.Copy(io.Discard, c) }, "no answer in time"},
		"one byte now and then": {func(c net.Conn) { drip(c) }, "no answer in time"},
	} {
		p := proxyOf(t, x.answer)
		p.patience = 300 * time.Millisecond
		if strings.Contains(name, "endless") {
			p.patience = time.Minute
		}
		var unusable *UnreachableError
		if _, err := connect(t.Context(), t, p); !errors.As(err, &unusable) || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), p.host) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}

func drip(c net.Conn) {
	for {
		if _, err := io.WriteString(c, "H"); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestTheEndOfAClientEndsTheWait(t *testing.T) {
	p := proxyOf(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := connect(ctx, t, p); err == nil {
		t.Error("no error")
	}
}

// No error has the user or the password. The one for the sandbox has no address either.
func TestErrorsHaveNoPassword(t *testing.T) {
	for status, want := range map[int]string{403: "operator", 407: "a user and a password", 502: "may be down", 302: "operator"} {
		p := proxyOf(t, sayText(fmt.Sprintf("HTTP/1.1 %d \x1b]0;evil\r\nProxy-Authenticate: Basic realm=\"secret\"\r\n\r\n<html>", status)))
		_, err := connect(t.Context(), t, p)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Status != status || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), p.shown) {
			t.Errorf("%d: %v", status, err)
			continue
		}
		for _, secret := range []string{"visitor", "s3cret", "evil", "realm"} {
			if strings.Contains(err.Error(), secret) || strings.Contains(refused.Inside(), secret) {
				t.Errorf("%d: the error has %q: %v, inside %q", status, secret, err, refused.Inside())
			}
		}
		if strings.Contains(refused.Inside(), p.host) {
			t.Errorf("%d: inside %q", status, refused.Inside())
		}
	}
	p, err := newProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:1", User: url.UserPassword("me", "word")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Dial(t.Context(), nil)
	var unusable *UnreachableError
	if !errors.As(err, &unusable) || !strings.Contains(err.Error(), "http://127.0.0.1:1 cannot be used: connection refused") || strings.Contains(err.Error(), "word") {
		t.Errorf("an unreachable proxy: %v", err)
	}
	if strings.Contains(unusable.Inside(), "127") {
		t.Errorf("inside: %s", unusable.Inside())
	}
}

func TestALookupOfTheProxyAboveTheBoundTellsTheReason(t *testing.T) {
	p, err := newProxy(&url.URL{Scheme: "http", Host: "proxy.example:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Dial(t.Context(), &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, nameserver.ErrTooMany
	}})
	if !errors.Is(err, nameserver.ErrTooMany) {
		t.Errorf("%v", err)
	}
}
