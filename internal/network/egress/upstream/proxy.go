package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// Bounds of the talk with a proxy.
const (
	// connectTime bounds the search for the proxy's address, the connection and its TLS.
	connectTime = 15 * time.Second
	// answerTime bounds the answers to CONNECT: a proxy waits for the server before it answers.
	answerTime = 45 * time.Second
	// maxHeads bounds the answers to CONNECT, in bytes, with those of the status 1xx.
	maxHeads = 64 << 10
)

// A Proxy is one upstream proxy.
type Proxy struct {
	// shown is the URL without user and password.
	shown, host, port string
	isTLS             bool
	authorization     string
	patience          time.Duration // answerTime
}

func newProxy(u *url.URL) (*Proxy, error) {
	parsed, err := spec.ParseUpstreamURL(u.String())
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		shown: spec.ShownUpstream(u.String()), host: parsed.Hostname(), port: parsed.Port(), isTLS: parsed.Scheme == "https",
		patience: answerTime,
	}
	if user := parsed.User; user != nil {
		password, _ := user.Password()
		p.authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) // RFC 7617
	}
	return p, nil
}

// String is the URL of the proxy without user and password.
func (p *Proxy) String() string { return p.shown }

// Authorization is the value of the field Proxy-Authorization. It is empty for a proxy without a password.
func (p *Proxy) Authorization() string { return p.authorization }

// Dial connects to the proxy.
func (p *Proxy) Dial(ctx context.Context, resolver *net.Resolver) (Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	d := net.Dialer{Resolver: resolver}
	d.SetMultipathTCP(false) // it has no splice(2)
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(p.host, p.port))
	if err != nil {
		return nil, &UnreachableError{p.shown, dialCause(err)}
	}
	plain := c.(*net.TCPConn) //nolint:forcetypeassert // of TCP
	if !p.isTLS {
		return plain, nil
	}
	secure := tls.Client(plain, &tls.Config{ServerName: p.host, MinVersion: tls.VersionTLS12})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = plain.Close() // no byte of a client was sent
		return nil, &UnreachableError{p.shown, fmt.Errorf("TLS: %w", err)}
	}
	return &SecureConn{secure, plain, bufio.NewReaderSize(secure, 16<<10)}, nil // a record of TLS has 16 KiB at most
}

// dialCause is an error without the addresses of the host and of the proxy.
func dialCause(err error) error {
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return nameserver.LookupCause(lookup)
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

// Connect asks for a tunnel to a destination (RFC 9110, section 9.3.6). It reads no byte behind the answer. After an
// error the connection is of no use. The end of ctx ends the wait.
func (p *Proxy) Connect(ctx context.Context, c Conn, destination string) error {
	err := c.SetDeadline(time.Now().Add(p.patience))
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err == nil {
		err = p.connect(c, destination)
	}
	if !stop() && err == nil { // the deadline of the past may come later
		err = ctx.Err()
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if _, isKnown := errors.AsType[*RefusedError](err); err != nil && !isKnown {
		return &UnreachableError{p.shown, fmt.Errorf("CONNECT: %w", answerCause(err))}
	}
	return err
}

func answerCause(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("no answer in time")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it has closed the connection without an answer")
	}
	return dialCause(err)
}

func (p *Proxy) connect(c Conn, destination string) error {
	var request bytes.Buffer
	fmt.Fprintf(&request, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", destination, destination)
	if p.authorization != "" {
		fmt.Fprintf(&request, "Proxy-Authorization: %s\r\n", p.authorization)
	}
	request.WriteString("\r\n")
	if _, err := c.Write(request.Bytes()); err != nil {
		return err
	}
	for left := maxHeads; ; {
		head, err := readHead(c, left)
		if err != nil {
			return err
		}
		left -= len(head)
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
		if err != nil {
			return errors.New("its answer is not of HTTP")
		}
		answer.Body.Close() // the bytes after the head are those of the tunnel
		switch status := answer.StatusCode; {
		case status == http.StatusSwitchingProtocols:
			return errors.New("it changes the protocol without a request")
		case status < http.StatusOK: // an interim answer
		case status < http.StatusMultipleChoices:
			return nil
		default:
			return &RefusedError{Proxy: p.shown, Asked: "CONNECT " + destination, Status: status}
		}
	}
}

// readHead reads the head of an answer, and no byte more: the next byte can be the server's, which the kernel copies.
func readHead(r io.Reader, most int) ([]byte, error) {
	var head []byte
	one := make([]byte, 1)
	for {
		if len(head) == most {
			return nil, fmt.Errorf("the heads of its answers have more than %d bytes", maxHeads)
		}
		if _, err := io.ReadFull(r, one); err != nil {
			return nil, err
		}
		head = append(head, one[0])
		if one[0] == '\n' && (bytes.HasSuffix(head, []byte("\n\r\n")) || bytes.HasSuffix(head, []byte("\n\n"))) {
			return head, nil
		}
	}
}
