package sniff

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"strings"
	"time"
)

// Requests reads the requests of a connection of plain HTTP, one after the other.
type Requests struct {
	source *timedReader
	reader *bufio.Reader
	// isForProxy says that the client has connected to a proxy by its own choice.
	isForProxy bool
}

// NewRequests reads the opening's bytes first, then the connection. The connection may be silent
// for the idle time before a request and within a body.
func NewRequests(o Opening, c Conn, idle time.Duration) *Requests {
	source := &timedReader{conn: c, idle: idle}
	return &Requests{source: source, reader: bufio.NewReaderSize(io.MultiReader(bytes.NewReader(o.Bytes), source), maxLine)}
}

// NewProxyRequests is NewRequests for a client that knows of a proxy: its requests have whole URLs, or are
// CONNECT.
func NewProxyRequests(o Opening, c Conn, idle time.Duration) *Requests {
	r := NewRequests(o, c, idle)
	r.isForProxy = true
	return r
}

// A timedReader sets a deadline before each read.
type timedReader struct {
	conn     Conn
	idle     time.Duration
	deadline time.Time // zero: the idle time counts
}

func (r *timedReader) Read(b []byte) (int, error) {
	deadline := r.deadline
	if deadline.IsZero() {
		deadline = time.Now().Add(r.idle)
	}
	if err := r.conn.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	return r.conn.Read(b)
}

// A Request is one request. Its head is valid, and not yet judged.
type Request struct {
	Method string
	Path   string // of the target, percent-encoded as sent, without the query; * if the target is *
	Host   string // in lower case, without a trailing dot
	Port   uint16 // of the Host field or the target; zero if both have none
	// IsUpgrade means that the client asks for WebSocket. If the server agrees, no request follows.
	IsUpgrade bool
	// IsLast means that the client sends no other request on the connection.
	IsLast bool

	// Of requests to a proxy:

	// IsConnect means that a connection to Host and Port is wanted. No request follows.
	IsConnect bool
	// Address is valid if Host is an address. Port is then the one of the target.
	Address netip.Addr

	head      []byte
	length    int64
	isChunked bool
	reader    *bufio.Reader
}

// Next reads the head of a request. The caller has sent the one before. At the end of the
// connection the error is io.EOF. After os.ErrDeadlineExceeded, the caller can wait for the idle time
// again. A *MalformedError means that the connection cannot go on.
func (r *Requests) Next() (*Request, error) {
	if _, err := r.reader.Peek(1); err != nil {
		return nil, err
	}
	r.source.deadline = time.Now().Add(readTime)
	head, err := readHead(r.reader)
	r.source.deadline = time.Time{}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = malformed("the head of the request took longer than %v", readTime)
	}
	if err != nil {
		return nil, err
	}
	fields, err := parseHead(head, r.isForProxy)
	if err != nil {
		return nil, err
	}
	// The second opinion of net/http: it reads the head only.
	parsed, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(fields.raw)))
	if err != nil {
		return nil, malformed("malformed request: %v", err)
	}
	request := &Request{
		Method: parsed.Method, head: fields.raw, length: max(parsed.ContentLength, 0), reader: r.reader,
		isChunked: len(parsed.TransferEncoding) > 0, IsUpgrade: fields.isUpgrade,
		IsLast: parsed.Close,
	}
	if request.isChunked != (fields.encoding != "") {
		return nil, malformed("Transfer-Encoding %q is not supported", fields.encoding)
	}
	if request.IsUpgrade && (request.Method != http.MethodGet || request.isChunked || request.length > 0) {
		return nil, malformed("a request for WebSocket is a GET without a body")
	}
	if r.isForProxy {
		return request, request.setProxyTarget(fields, parsed)
	}
	return request, request.setTarget(fields, parsed)
}

// Opening is Read for the bytes after the last request.
func (r *Requests) Opening(wait time.Duration) (Opening, error) {
	present := r.reader.Buffered()
	if present == 0 {
		return Read(r.source.conn, wait)
	}
	b := make([]byte, present, maxLine) // the reader has no more room
	_, _ = io.ReadFull(r.reader, b)     // never fails: the bytes are there
	return readOn(b, r.source.conn)
}

// Rest returns the bytes that have been read after the last request.
func (r *Requests) Rest() []byte {
	b, _ := r.reader.Peek(r.reader.Buffered()) // never fails
	return b
}

// SendHead writes the head as the client wrote it, except for upgrades to other protocols than
// WebSocket: a server can ignore these (RFC 9110, section 7.8), so the request itself goes on.
func (r *Request) SendHead(w io.Writer) error {
	_, err := w.Write(r.head)
	return err
}

// SendProxyHead writes the head for another proxy, with the whole URL of a host (RFC 9112, section 3.2.2). The client's
// own fields for a proxy are left out. authorization can be empty.
func (r *Request) SendProxyHead(w io.Writer, authority, authorization string) error {
	line, rest, _ := strings.Cut(string(r.head), "\r\n")
	parts := strings.SplitN(line, " ", 3) // parseHead has found three
	target := parts[1]
	if strings.HasPrefix(target, "http://") {
		target = originForm(target, r.Method)
	}
	if target == "*" {
		target = "" // RFC 9112, section 3.2.4
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s http://%s%s %s\r\n", parts[0], authority, target, parts[2])
	for field := range strings.Lines(rest) {
		if field == "\r\n" && authorization != "" {
			fmt.Fprintf(&b, "Proxy-Authorization: %s\r\n", authorization)
		}
		if !isProxyField(field) {
			b.WriteString(field)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// SendBody reads the body and writes it. The borders of chunks can change, extensions of chunks and
// trailers are dropped (RFC 9112, section 7.1).
func (r *Request) SendBody(w io.Writer) error {
	if !r.isChunked {
		_, err := io.CopyN(w, r.reader, r.length)
		return err
	}
	return CopyChunks(w, r.reader)
}

// CopyChunks copies a body in chunks, as SendBody does.
func CopyChunks(w io.Writer, r *bufio.Reader) error {
	chunks := httputil.NewChunkedReader(r)
	out := bufio.NewWriter(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := chunks.Read(buffer)
		if n > 0 {
			fmt.Fprintf(out, "%x\r\n", n)
			_, _ = out.Write(buffer[:n]) // Flush returns the error
			_, _ = out.WriteString("\r\n")
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("body: %w", err)
		}
	}
	if err := dropTrailers(r); err != nil {
		return err
	}
	_, err := io.WriteString(w, "0\r\n\r\n")
	return err
}

func dropTrailers(r *bufio.Reader) error {
	for size := 0; ; {
		line, err := readLine(r, maxBytes-size)
		if err != nil || len(line) == 0 {
			return err
		}
		size += len(line)
	}
}
