package sniff

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func requestsOf(text string) *Requests {
	return NewRequests(Opening{Kind: HTTP}, packetReader{strings.NewReader(text)}, time.Minute)
}

// checkRepeat checks that the server reads the same request, and nothing after it.
func checkRepeat(t *testing.T, want *Request, sent []byte) {
	t.Helper()
	r := bufio.NewReader(bytes.NewReader(sent))
	got, err := http.ReadRequest(r)
	if err != nil {
		t.Fatalf("%q: %v", sent, err)
	}
	if _, err := io.Copy(io.Discard, got.Body); err != nil {
		t.Errorf("%q: body: %v", sent, err)
	}
	host, _, err := splitHost(got.Host)
	if err != nil || host != want.Host || got.Method != want.Method {
		t.Errorf("%q: host %q, method %q, error %v; want %+v", sent, got.Host, got.Method, err, want)
	}
	if rest, _ := io.ReadAll(r); len(rest) > 0 {
		t.Errorf("%q: %q is left", sent, rest)
	}
}

func TestRequestsFollowEachOther(t *testing.T) {
	first := "POST /a%20b?q=/x HTTP/1.1\r\nhost: Pypi.ORG.\r\nContent-Length: 3\r\nX-Odd:\tv \r\n\r\nabc"
	chunked := "PUT http://pypi.org:80 HTTP/1.1\r\nHost: pypi.org\r\nTransfer-Encoding: Chunked\r\n\r\n"
	third := "OPTIONS * HTTP/1.0\r\nHost: pypi.org:8080\r\n\r\n"
	r := requestsOf(first + chunked + "2;ext=1\r\nab\r\n1\r\nc\r\n0\r\nTrailer: x\r\n\r\n" + third)
	for _, x := range []struct {
		want       Request
		head, body string
	}{
		{Request{Method: "POST", Path: "/a%20b", Host: "pypi.org"}, first[:len(first)-3], "abc"},
		{Request{Method: "PUT", Path: "/", Host: "pypi.org"}, chunked, "3\r\nabc\r\n0\r\n\r\n"},
		{Request{Method: "OPTIONS", Path: "*", Host: "pypi.org", Port: 8080}, third, ""},
	} {
		got, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got.Method != x.want.Method || got.Path != x.want.Path || got.Host != x.want.Host || got.IsUpgrade || got.Port != x.want.Port && got.Port != 80 {
			t.Errorf("%+v, want %+v", got, x.want)
		}
		var head, body bytes.Buffer
		if err := errors.Join(got.SendHead(&head), got.SendBody(&body)); err != nil {
			t.Fatal(err)
		}
		if head.String() != x.head || body.String() != x.body {
			t.Errorf("sent %q and %q, want %q and %q", &head, &body, x.head, x.body)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// Each of them is read differently by some servers and proxies, or asks for another host.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	const host = "Host: pypi.org\r\n"
	for name, text := range map[string]string{
		"two lengths":          "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
		"a length twice":       "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\n",
		"a list of lengths":    "POST / HTTP/1.1\r\n" + host + "Content-Length: 3, 3\r\n\r\n",
		"a signed length":      "POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\n",
		"a huge length":        "POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n",
		"no length":            "POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\n",
		"encodings":            "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n",
		"an unknown encoding":  "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n",
		"an encoding twice":    "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"an empty encoding":    "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\r\n\r\n",
		"an encoding of 1.0":   "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n",
		"space before a colon": "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding : chunked\r\n\r\n",
		"a tab before a colon": "POST / HTTP/1.1\r\n" + host + "Content-Length\t: 3\r\n\r\n",
		"a folded field":       "GET / HTTP/1.1\r\n" + host + "X: a\r\n Host: evil.org\r\n\r\n",
		"a folded first field": "GET / HTTP/1.1\r\n " + host + host + "\r\n",
		"a bare LF":            "GET / HTTP/1.1\n" + host + "\r\n",
		"a bare LF in a field": "GET / HTTP/1.1\r\n" + host + "X: a\nHost: evil.org\r\n\r\n",
		"a bare CR":            "GET / HTTP/1.1\r\n" + host + "X: a\rHost: evil.org\r\n\r\n",
		"a NUL":                "GET / HTTP/1.1\r\n" + host + "X: a\x00\r\n\r\n",
		"a line without colon": "GET / HTTP/1.1\r\n" + host + "evil\r\n\r\n",
		"a field without name": "GET / HTTP/1.1\r\n" + host + ": x\r\n\r\n",
		"a strange field name": "GET / HTTP/1.1\r\n" + host + "X(: x\r\n\r\n",
		"an empty first line":  "\r\nGET / HTTP/1.1\r\n" + host + "\r\n",
		"no host":              "GET / HTTP/1.1\r\nX: y\r\n\r\n",
		"no host in 1.0":       "GET / HTTP/1.0\r\n\r\n",
		"two hosts":            "GET / HTTP/1.1\r\n" + host + "HOST: evil.org\r\n\r\n",
		"an empty host":        "GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"a host with a user":   "GET / HTTP/1.1\r\nHost: pypi.org@evil.org\r\n\r\n",
		"a host with a slash":  "GET / HTTP/1.1\r\nHost: evil.org/pypi.org\r\n\r\n",
		"a list of hosts":      "GET / HTTP/1.1\r\nHost: pypi.org, evil.org\r\n\r\n",
		"a Kelvin sign":        "GET / HTTP/1.1\r\nHost: \u212aernel.org\r\n\r\n",
		"a port of no number":  "GET / HTTP/1.1\r\nHost: pypi.org:80a\r\n\r\n",
		"an empty port":        "GET / HTTP/1.1\r\nHost: pypi.org:\r\n\r\n",
		"another target":       "GET http://evil.org/ HTTP/1.1\r\n" + host + "\r\n",
		"another target port":  "GET http://pypi.org:8080/ HTTP/1.1\r\n" + host + "\r\n",
		"a user in the target": "GET http://pypi.org@evil.org/ HTTP/1.1\r\n" + host + "\r\n",
		"a name as user":       "GET http://evil.org@pypi.org/ HTTP/1.1\r\n" + host + "\r\n",
		"https":                "GET https://pypi.org/ HTTP/1.1\r\n" + host + "\r\n",
		"an opaque target":     "GET http:pypi.org HTTP/1.1\r\n" + host + "\r\n",
		"a relative target":    "GET pypi.org HTTP/1.1\r\n" + host + "\r\n",
		"a fragment":           "GET /#x HTTP/1.1\r\n" + host + "\r\n",
		"no target":            "GET  HTTP/1.1\r\n" + host + "\r\n",
		"a tab":                "GET\t/ HTTP/1.1\r\n" + host + "\r\n",
		"four words":           "GET / x HTTP/1.1\r\n" + host + "\r\n",
		"a strange method":     "G(T / HTTP/1.1\r\n" + host + "\r\n",
		"* with GET":           "GET * HTTP/1.1\r\n" + host + "\r\n",
		"HTTP/0.9":             "GET /\r\n" + host + "\r\n",
		"HTTP/1.2":             "GET / HTTP/1.2\r\n" + host + "\r\n",
		"HTTP/2":               "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"CONNECT":              "CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n",
		"CONNECT of a path":    "CONNECT / HTTP/1.1\r\n" + host + "\r\n",
		"a removed field":      "GET / HTTP/1.1\r\n" + host + "Connection: close, Host\r\n\r\n",
		"WebSocket by POST":    "POST / HTTP/1.1\r\n" + host + "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
		"WebSocket and a body": "GET / HTTP/1.1\r\n" + host + "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\nx",
		"a head of 64 KiB":     "GET / HTTP/1.1\r\n" + host + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 66) + "\r\n",
		"a line of 64 KiB":     "GET /" + strings.Repeat("y", 1<<16) + " HTTP/1.1\r\n" + host + "\r\n",
	} {
		var bad *MalformedError
		if r, err := requestsOf(text).Next(); !errors.As(err, &bad) {
			t.Errorf("%s: read %v, error %v", name, r != nil, err)
		}
	}
	for name, text := range map[string]string{"a cut head": "GET / HTTP/1.1\r\n" + host, "a cut line": "GET"} {
		if r, err := requestsOf(text).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %+v, error %v", name, r, err)
		}
	}
	for name, body := range map[string]string{
		"a bare LF": "1\nx\n0\n\n", "no number": "x\r\n", "a cut chunk": "5\r\nx", "a long chunk": "1\r\nxy\r\n0\r\n\r\n",
		"trailers without end": "0\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 66) + "\r\n",
	} {
		r, err := requestsOf("POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + body).Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SendBody(io.Discard); err == nil {
			t.Errorf("a body with %s was sent", name)
		}
	}
}

func TestOnlyWebSocketUpgradesArePassedOn(t *testing.T) {
	for name, x := range map[string]struct {
		fields, sent string
		isUpgrade    bool
	}{
		"WebSocket":   {"Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n", "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n", true},
		"h2c":         {"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n", "", false},
		"h2c, kept":   {"Connection: keep-alive\r\nconnection: Upgrade\r\nUpgrade: h2c\r\nX: y\r\n", "X: y\r\nConnection: keep-alive\r\n", false},
		"a choice":    {"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n", "", false},
		"two fields":  {"Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n", "", false},
		"unconnected": {"Upgrade: websocket\r\n", "", false},
		"none":        {"Connection: close\r\n", "Connection: close\r\n", false},
	} {
		const start = "GET / HTTP/1.1\r\nHost: pypi.org\r\n"
		requests := requestsOf(start + x.fields + "\r\n\x81\x00")
		r, err := requests.Next()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var sent bytes.Buffer
		if err := r.SendHead(&sent); err != nil {
			t.Fatal(err)
		}
		if want := start + x.sent + "\r\n"; sent.String() != want || r.IsUpgrade != x.isUpgrade {
			t.Errorf("%s: sent %q, upgrade %v; want %q, %v", name, &sent, r.IsUpgrade, want, x.isUpgrade)
		}
		if rest := requests.Rest(); string(rest) != "\x81\x00" {
			t.Errorf("%s: %q is left", name, rest)
		}
	}
}

func TestRequestsHaveTheirTime(t *testing.T) {
	u := &endlessConn{text: "A"}
	r := NewRequests(Opening{}, u, time.Hour)
	if _, err := r.Next(); err == nil {
		t.Error("a request without end was read")
	}
	if left := time.Until(u.deadline); left > readTime {
		t.Errorf("a head has %v", left)
	}
	if u.read > 2*maxBytes {
		t.Errorf("%d bytes were read", u.read)
	}
	// A client can be silent before a request, and not within the head.
	if _, err := NewRequests(Opening{}, expiredConn{}, time.Hour).Next(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("before a request: %v", err)
	}
	var bad *MalformedError
	if _, err := NewRequests(Opening{Bytes: []byte("GET / HTTP/1.1\r\n")}, expiredConn{}, time.Hour).Next(); !errors.As(err, &bad) {
		t.Errorf("within a head: %v", err)
	}
}

// expiredConn is a connection whose deadline has passed.
type expiredConn struct{}

func (expiredConn) Read([]byte) (int, error)        { return 0, os.ErrDeadlineExceeded }
func (expiredConn) SetReadDeadline(time.Time) error { return nil }

// Real clients pass.
func TestClientsOfHTTP(t *testing.T) {
	for name, client := range map[string]func(string){
		"Go": func(address string) {
			transport := &http.Transport{DisableKeepAlives: true}
			request, _ := http.NewRequest(http.MethodPost, "http://"+address+"/x", io.MultiReader(strings.NewReader("body"))) // chunked
			request.Host = "pypi.org"
			if response, err := transport.RoundTrip(request); err == nil {
				response.Body.Close()
			}
		},
		"curl": program("curl", func(_, port string) []string {
			return []string{"-s", "--noproxy", "*", "--http2", "-d", "body", "--connect-to", "::127.0.0.1:" + port, "http://pypi.org/x"}
		}),
		"curl by a proxy": program("curl", func(host, port string) []string {
			return []string{"-s", "--noproxy", "", "-d", "body", "-x", net.JoinHostPort(host, port), "http://pypi.org/x"}
		}),
	} {
		c := accept(t, client)
		o, err := Read(c, time.Minute)
		if err != nil || o.Kind != HTTP {
			t.Errorf("%s: %s, error %v", name, o.Kind, err)
			continue
		}
		r, err := NewRequests(o, c, time.Minute).Next()
		if err != nil || r.Method != http.MethodPost || r.Path != "/x" || r.Host != "pypi.org" {
			t.Errorf("%s: %+v, error %v", name, r, err)
			continue
		}
		var sent bytes.Buffer
		if err := errors.Join(r.SendHead(&sent), r.SendBody(&sent)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		checkRepeat(t, r, sent.Bytes())
		if !slices.Contains([]string{"body", "4\r\nbody\r\n0\r\n\r\n"}, sent.String()[strings.Index(sent.String(), "\r\n\r\n")+4:]) {
			t.Errorf("%s: sent %q", name, &sent)
		}
	}
}

// Many short fields need far more memory than their bytes.
func TestTheFieldsOfARequestAreBounded(t *testing.T) {
	for count, isValid := range map[int]bool{maxFields: true, maxFields + 1: false} {
		fields := "Host: pypi.org\r\n" + strings.Repeat("a:\r\n", count-1)
		_, err := requestsOf("GET / HTTP/1.1\r\n" + fields + "\r\n").Next()
		var malformed *MalformedError
		if isValid && err != nil || !isValid && !errors.As(err, &malformed) {
			t.Errorf("%d fields: %v", count, err)
		}
	}
}
