package sniff

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// accept runs a client, and returns the server's end of its connection.
func accept(t testing.TB, client func(address string)) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		client(l.Addr().String())
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		l.Close()
		<-done
	})
	return c
}

// sending is a client that sends the parts with pauses, and waits for the end.
func sending(parts ...[]byte) func(string) {
	return func(address string) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer c.Close()
		for _, p := range parts {
			c.Write(p)
			time.Sleep(2 * time.Millisecond)
		}
		io.Copy(io.Discard, c)
	}
}

func tlsClient(config *tls.Config) func(string) {
	return func(address string) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		defer c.Close()
		tls.Client(c, config).Handshake()
	}
}

func program(name string, args func(host, port string) []string) func(string) {
	return func(address string) {
		host, port, _ := net.SplitHostPort(address)
		exec.Command(name, args(host, port)...).Run()
	}
}

// hello is the ClientHello of a real client.
func hello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	o, err := Read(accept(t, tlsClient(config)), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return o.Bytes
}

// records divides the message of a record into records of a size.
func records(record []byte, size int) []byte {
	var all []byte
	for part := range slices.Chunk(record[5:], size) {
		all = append(all, 0x16, 3, 1)
		all = binary.BigEndian.AppendUint16(all, uint16(len(part)))
		all = append(all, part...)
	}
	return all
}

// encrypted is a list with one ECHConfig (RFC 9849, section 4).
func encrypted(t *testing.T, publicName string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := key.PublicKey().Bytes()
	content := []byte{1, 0, 0x20, 0, byte(len(public))}
	content = append(content, public...)
	content = append(content, 0, 4, 0, 1, 0, 1, 32, byte(len(publicName)))
	content = append(content, publicName...)
	content = append(content, 0, 0)
	config := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(content)))
	config = append(config, content...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(config))), config...)
}

func TestClientHellos(t *testing.T) {
	plain := hello(t, &tls.Config{ServerName: "pypi.org"})
	large := hello(t, &tls.Config{ServerName: "pypi.org", NextProtos: slices.Repeat([]string{strings.Repeat("p", 255)}, 60)})
	for name, x := range map[string]struct {
		client func(string)
		server string
		hasECH bool
	}{
		"Go":             {tlsClient(&tls.Config{ServerName: "pypi.org"}), "pypi.org", false},
		"upper case":     {tlsClient(&tls.Config{ServerName: "PyPI.org"}), "pypi.org", false},
		"no name":        {tlsClient(&tls.Config{ServerName: "127.0.0.1", InsecureSkipVerify: true}), "", false},
		"TLS 1.0":        {tlsClient(&tls.Config{ServerName: "pypi.org", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}), "pypi.org", false},
		"ECH":            {tlsClient(&tls.Config{ServerName: "secret.example", EncryptedClientHelloConfigList: encrypted(t, "outer.example")}), "outer.example", true},
		"slow":           {sending(plain[:1], plain[1:4], plain[4:7], plain[7:50], plain[50:]), "pypi.org", false},
		"small records":  {sending(records(plain, 7)), "pypi.org", false},
		"large":          {sending(large), "pypi.org", false},
		"more behind it": {sending(slices.Concat(plain, []byte("more"))), "pypi.org", false},
		"curl": {program("curl", func(_, port string) []string {
			return []string{"-sk", "--noproxy", "*", "--connect-to", "::127.0.0.1:" + port, "https://pypi.org/"}
		}), "pypi.org", false},
	} {
		o, err := Read(accept(t, x.client), time.Minute)
		if err != nil || o.Kind != TLS || o.ServerName != x.server || o.HasECH != x.hasECH {
			t.Errorf("%s: %s, name %q, ECH %v, error %v; want name %q, ECH %v", name, o.Kind, o.ServerName, o.HasECH, err, x.server, x.hasECH)
		}
	}
}

// A client can send data right after its ClientHello (early data, RFC 8446, section 2.3).
func TestBytesAfterTheClientHelloAreKept(t *testing.T) {
	first := hello(t, &tls.Config{ServerName: "pypi.org"})
	for _, size := range []int{0, 1, 100, 1000, 3000, 10_000} {
		all := slices.Concat(first, bytes.Repeat([]byte{0x17}, size))
		c := packetReader{bytes.NewReader(all)}
		o, err := Read(c, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(c)
		if got := slices.Concat(o.Bytes, rest); err != nil || !bytes.Equal(got, all) {
			t.Errorf("%d bytes after the ClientHello: %d bytes of %d are there, %v", size, len(got), len(all), err)
		}
	}
}

func TestMalformedClientHellosAreRefused(t *testing.T) {
	const placeholder = "placeholder.example.org"
	plain := hello(t, &tls.Config{ServerName: placeholder})
	named := func(name string) []byte { return bytes.Replace(plain, []byte(placeholder), []byte(name), 1) }
	for name, b := range map[string][]byte{
		"trailing dot":  named("placeholder.example.or."),
		"non-ASCII":     named("placeholder.examp\xc3\xa9.org"),
		"Kelvin sign":   named("placeholder.\xe2\x84\xaaample.org"),
		"a NUL":         named("placeholder.example\x00org"),
		"two names":     bytes.Replace(plain, []byte("\x00\x17"+placeholder), []byte("\x00\x08evil.org\x00\x00\x0cexample.org0"), 1),
		"a short name":  bytes.Replace(plain, []byte("\x00\x17"+placeholder), []byte("\x00\x18"+placeholder), 1),
		"no handshake":  append([]byte{0x16, 3, 1, 0, 4}, 2, 0, 0, 0),
		"an alert":      append(slices.Clone(plain[:5]), 0x15, 3, 1, 0, 2, 2, 40),
		"an empty one":  {0x16, 3, 1, 0, 0},
		"a warning":     append([]byte{0x15, 3, 1, 0, 2, 1, 90}, plain...),
		"a cipher":      append([]byte{0x14, 3, 3, 0, 1, 1}, plain...),
		"data":          append([]byte{0x17, 3, 3, 0, 0}, plain...),
		"SSL 2.0":       append([]byte{0x80, 0x2e, 1, 3, 3}, make([]byte, 43)...),
		"only a letter": {0x16, 'x', 'x', 'x', 'x', 'x'},
		"too long":      records(slices.Concat(plain[:5], []byte{1, 0, 0x50, 0x01}, make([]byte, 0x5001)), 1000),
	} {
		c := accept(t, func(address string) {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Write(b)
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
				c.Close()
			}
		})
		var bad *MalformedError
		if o, err := Read(c, time.Minute); !errors.As(err, &bad) || o.ServerName != "" || len(o.Bytes) > maxHello {
			t.Errorf("%s: %s, name %q, %d bytes, error %v", name, o.Kind, o.ServerName, len(o.Bytes), err)
		}
	}
}

func TestKinds(t *testing.T) {
	for text, want := range map[string]Kind{
		"GET / HTTP/1.1\r\n":                    HTTP,
		"GET /":                                 HTTP,
		"POST\thttp://evil.org":                 HTTP,
		"GET http://evil.org/\r\n":              HTTP, // HTTP/0.9
		"PROPFIND / HTTP/1.1\r\n":               HTTP,
		"get / http/1.0\n":                      HTTP,
		"\r\n\r\nGET / HTTP/1.1\r\n":            HTTP,
		" GET / HTTP/1.1\r\n":                   HTTP,
		"X\r/ HTTP/1.1\r\n":                     HTTP,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":      HTTP,
		"PROXY TCP4 192.0.2.1 9.9.9.9 1 80\r\n": HTTP,
		"PROXY UNKNOWN\r\n":                     HTTP,
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11":        HTTP, // version 2 of the PROXY protocol
		"PROXYCHECK\r\n":                        Other,
		"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n":    Other,
		"EHLO client.example\r\n":               Other,
		"*1\r\n$4\r\nPING\r\n":                  Other, // Redis
		"get key\r\n":                           Other, // memcached
		"0032git-upload-pack /p\x00host=h\x00":  Other,
		"\x00\x00\x00\x08\x04\xd2\x16\x2f":      Other, // PostgreSQL asks for TLS
		"AMQP\x00\x00\x09\x01":                  Other,
		"\x13BitTorrent protocol":               Other,
		"\r\n\x00":                              Other,
		"\x15\x00\x00\x01":                      Other, // a short packet of MySQL
		"\x80\x00\x00\x01":                      Other,
		"\xff\xfb\x18":                          Other, // Telnet
	} {
		for size := 1; size <= len(text); size += max(len(text)-1, 1) { // byte by byte, and at once
			var parts [][]byte
			for p := range slices.Chunk([]byte(text), size) {
				parts = append(parts, p)
			}
			o, err := Read(accept(t, sending(parts...)), time.Minute)
			if err != nil || o.Kind != want || !strings.HasPrefix(text, string(o.Bytes)) {
				t.Errorf("%q by %d: %s, error %v, want %s", text, size, o.Kind, err, want)
			}
		}
	}
}

// A client that waits for the server, or ends, is told from others.
func TestSilentClients(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := accept(t, func(address string) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		<-ctx.Done()
		io.WriteString(c, "SSH-2.0-x\r\n")
		c.Close()
	})
	if o, err := Read(c, 10*time.Millisecond); !errors.Is(err, ErrSilent) || len(o.Bytes) > 0 {
		t.Errorf("%+v, error %v, want %v", o, err, ErrSilent)
	}
	cancel()
	if o, err := Read(c, time.Minute); err != nil || o.Kind != Other || string(o.Bytes) != "SSH-2.0-x\r\n" {
		t.Errorf("%+v, error %v", o, err)
	}
	if _, err := Read(c, time.Minute); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// endlessConn is a connection that sends one text without end. It knows its deadline.
type endlessConn struct {
	text     string
	read     int
	deadline time.Time
}

func (u *endlessConn) Read(b []byte) (int, error) {
	n := copy(b, u.text)
	u.read += n
	return n, nil
}

func (u *endlessConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		u.deadline = t
	}
	return nil
}

func TestOpeningsAreBounded(t *testing.T) {
	for _, text := range []string{"A", " ", "\n", "A B", "\x16\x03\x01\x00\x01\x01"} {
		u := &endlessConn{text: text}
		var bad *MalformedError
		o, err := Read(u, time.Minute)
		if !errors.As(err, &bad) || u.read > 2*maxBytes || len(o.Bytes) > maxBytes {
			t.Errorf("%q: %d bytes read, error %v", text, u.read, err)
		}
		if time.Until(u.deadline) > readTime {
			t.Errorf("%q: the deadline is %v", text, u.deadline)
		}
	}
}

type packetReader struct{ io.Reader }

func (packetReader) SetReadDeadline(time.Time) error { return nil }

func FuzzRead(f *testing.F) {
	f.Add(hello(f, &tls.Config{ServerName: "pypi.org"}))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: pypi.org\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("POST http://h:80/a?b HTTP/1.0\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := packetReader{bytes.NewReader(b)}
		o, err := Read(c, time.Minute)
		if err != nil {
			return
		}
		if strings.ToLower(o.ServerName) != o.ServerName || strings.HasSuffix(o.ServerName, ".") {
			t.Errorf("server name %q", o.ServerName)
		}
		if o.Kind != HTTP {
			if rest, err := io.ReadAll(c); err != nil || !bytes.Equal(slices.Concat(o.Bytes, rest), b) {
				t.Errorf("%q, then %q, %v", o.Bytes, rest, err)
			}
			return
		}
		requests := NewRequests(o, c, time.Minute)
		for {
			r, err := requests.Next()
			if err != nil {
				return
			}
			var sent bytes.Buffer
			if r.SendHead(&sent) != nil || r.SendBody(&sent) != nil {
				return
			}
			checkRepeat(t, r, sent.Bytes())
		}
	})
}
