// Package sniff reads the first bytes of a client, and the requests of plain HTTP, so that package
// proxy can judge the host to which they speak. Its input is hostile. The package bounds memory and
// time, and refuses each message that two readers could understand differently.
//
// Only the first ClientHello of a connection is read. A client can send others later, after a
// HelloRetryRequest or in an encrypted connection. So package sniff does not prove that the server
// answers for the name: domain fronting at a server that allows it stays possible.
package sniff

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// maxBytes bounds the head of a request.
	maxBytes = 64 << 10
	// maxHello bounds a ClientHello with its records. Some servers take no more than 16 KiB. Many clients can
	// be within a ClientHello at a time, and crypto/tls keeps the bytes, too.
	maxHello = 20 << 10
	// maxLine bounds a first line that is not clearly of HTTP. Each read looks at all of the line.
	maxLine = 4 << 10
	// readTime is the time for an opening, or the head of a request, after the first byte.
	readTime = 10 * time.Second
)

// A Conn is the part of a net.Conn that the package needs.
type Conn interface {
	io.Reader
	SetReadDeadline(t time.Time) error
}

// A MalformedError says why an opening or a request is refused.
type MalformedError struct{ Reason string }

func (e *MalformedError) Error() string { return e.Reason }

func malformed(format string, a ...any) error {
	return &MalformedError{fmt.Sprintf(format, a...)}
}

// ErrSilent means that the client has sent nothing yet.
var ErrSilent = fmt.Errorf("the client is silent: %w", os.ErrDeadlineExceeded)

// Kind is the protocol of a client.
type Kind string

// The kinds.
const (
	Other Kind = "other"
	TLS   Kind = "tls"
	HTTP  Kind = "http"
)

// An Opening is the beginning of a connection.
type Opening struct {
	Kind  Kind
	Bytes []byte // all bytes that have been read, for the server

	// Of TLS:
	ServerName string // in lower case; empty if the client sends none
	HasECH     bool   // ServerName is then the outer name (RFC 9849)
}

// Read reads the beginning of a connection. If no byte comes within the wait, the error is
// ErrSilent, and the caller can read again. A client that closes without a byte gives io.EOF. Any
// other error gives an Opening with the bytes so far.
func Read(c Conn, wait time.Duration) (Opening, error) {
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return Opening{}, err
	}
	b := make([]byte, maxLine)
	n, err := c.Read(b)
	if n == 0 {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ErrSilent
		}
		return Opening{}, err
	}
	return readOn(b[:n], c)
}

// readOn reads the rest of a beginning. It uses the capacity of b.
func readOn(b []byte, c Conn) (Opening, error) {
	if err := c.SetReadDeadline(time.Now().Add(readTime)); err != nil {
		return Opening{Kind: Other, Bytes: b}, err
	}
	o, err := read(b, c)
	return o, errors.Join(err, c.SetReadDeadline(time.Time{}))
}

// read uses the capacity of b.
func read(b []byte, r io.Reader) (Opening, error) {
	kind, ok := classify(b)
	for !ok {
		if len(b) == cap(b) {
			return Opening{Kind: Other, Bytes: b}, malformed("the first line of the client is too long")
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if n == 0 && err != nil {
			return Opening{Kind: Other, Bytes: b}, malformed("the first line of the client is incomplete")
		}
		kind, ok = classify(b)
	}
	if kind == TLS {
		return readHello(b, r)
	}
	return Opening{Kind: kind, Bytes: b}, nil
}

// Some servers accept a header of the PROXY protocol before the first request or ClientHello (haproxy
// doc/proxy-protocol.txt, versions 1 and 2). The bytes behind such a header would not be judged. These are the begins
// of the headers: a client with one gets the answer to a malformed request.
const (
	proxyHeader1 = "PROXY"
	proxyHeader2 = "\r\n\r\n\x00"
)

// classify is not ok as long as the bytes can become a request of HTTP. A line that only a tolerant
// server takes for a request is HTTP here: package sniff refuses this line later.
func classify(b []byte) (kind Kind, ok bool) {
	const space = " \t\v\f\r"
	if isTLS, ok := classifyTLS(b); isTLS || !ok {
		return TLS, ok
	}
	if bytes.HasPrefix(b, []byte(proxyHeader2)) {
		return HTTP, true
	}
	line, _, isComplete := bytes.Cut(bytes.TrimLeft(b, space+"\n"), []byte("\n"))
	word, rest := line, []byte(nil)
	if i := bytes.IndexAny(line, space); i >= 0 {
		word, rest = line[:i], line[i:]
	}
	isMethod := slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", proxyHeader1}, string(word))
	switch {
	case len(word) > 0 && !isToken(string(word)):
		return Other, true
	case len(rest) > 0 && isMethod, bytes.Contains(bytes.ToUpper(rest), []byte("HTTP/")):
		return HTTP, true
	case isComplete && len(word) > 0, bytes.IndexByte(rest, 0) >= 0:
		return Other, true
	}
	return Other, false
}

// handshake is the type of a record with a ClientHello (RFC 8446, section 5.1).
const handshake = 0x16

// classifyTLS is not ok as long as the bytes can become TLS. Servers skip some records before a ClientHello,
// such as alerts, and some accept a ClientHello in the form of SSL 2.0. Such bytes are TLS here: readHello
// refuses them later.
func classifyTLS(b []byte) (isTLS, ok bool) {
	const firstType, lastType, major = 0x14, 0x18, 3
	switch {
	case len(b) == 0:
		return false, true
	case b[0] == handshake:
		return true, true
	case firstType <= b[0] && b[0] <= lastType:
		return len(b) > 1 && b[1] == major, len(b) > 1
	}
	// RFC 5246, appendix E.2: the length, with its first bit set, the type 1, and the version. No server takes
	// more than 16 KiB.
	if b[0]>>6 != 2 || len(b) > 2 && b[2] != 1 {
		return false, true
	}
	return len(b) > 3 && (b[3] == major || b[3] == 0), len(b) > 3
}

// isToken is false for an empty word. The names of fields and methods are tokens (RFC 9110, sections 5.1, 5.6.2 and 9.1).
func isToken(word string) bool { return httpguts.ValidHeaderFieldName(word) }

// A replay is the connection for crypto/tls: the client's bytes, and nothing goes back.
type replay struct {
	net.Conn
	io.Reader
}

func (r replay) Read(b []byte) (int, error)  { return r.Reader.Read(b) }
func (r replay) Write(b []byte) (int, error) { return len(b), nil }

var errSeen = errors.New("the ClientHello was read")

// readHello reads a ClientHello, however its records divide it. crypto/tls refuses server names
// with a trailing dot, and lists of several names.
func readHello(b []byte, r io.Reader) (Opening, error) {
	if b[0] != handshake {
		return Opening{Kind: TLS, Bytes: b}, malformed("TLS does not begin with a ClientHello of TLS")
	}
	const encryptedClientHello = 0xfe0d
	var all bytes.Buffer
	begin := bytes.NewReader(b)
	bounded := io.LimitReader(io.MultiReader(begin, r), maxHello)
	o := Opening{Kind: TLS}
	var nonASCII bool
	err := tls.Server(replay{Reader: io.TeeReader(bounded, &all)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			nonASCII = strings.ContainsFunc(h.ServerName, func(r rune) bool { return r <= ' ' || r > '~' })
			o.ServerName = strings.ToLower(h.ServerName)
			o.HasECH = slices.Contains(h.Extensions, encryptedClientHello)
			return nil, errSeen
		},
	}).Handshake()
	_, _ = all.ReadFrom(begin) // never fails; crypto/tls may leave bytes after the ClientHello
	o.Bytes = all.Bytes()
	if !errors.Is(err, errSeen) {
		return o, malformed("the TLS ClientHello is malformed: %v", err)
	}
	if nonASCII {
		return Opening{Kind: TLS, Bytes: o.Bytes}, malformed("the server name of TLS has unusual characters")
	}
	return o, nil
}
