package proxy

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/upstream"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// office is the address of the upstream proxy of the tests.
const office = "10.77.0.1:3128"

// An officeProxy is a proxy that connects to one server for each port, and knows of no rules. It keeps the first lines of
// the requests, with the password.
type officeProxy struct {
	servers map[string]string // by port
	denied  []string          // ports without a tunnel

	mu       sync.Mutex
	requests []string
}

// newOffice starts the proxy, with TLS if secure is true, and has the world use it.
func newOffice(t *testing.T, w *world, servers map[string]string, secure bool, denied ...string) *officeProxy {
	t.Helper()
	o := &officeProxy{servers: servers, denied: denied}
	h := httptest.NewUnstartedServer(o)
	h.Listener.Close()
	h.Listener = listen(t, office)
	scheme := "http"
	if secure {
		scheme = "https"
		h.TLS = &tls.Config{Certificates: []tls.Certificate{officeCertificate(t)}}
		h.StartTLS()
	} else {
		h.Start()
	}
	t.Cleanup(func() { h.CloseClientConnections(); h.Close() })
	w.useUpstream(t, scheme+"://visitor:word@"+office)
	return o
}

// officeCertificate is a certificate that this process trusts.
func officeCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP("10.77.0.1")},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "authorities")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file) // no other test of this process looks at authorities before
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (w *world) useUpstream(t *testing.T, url string) {
	t.Helper()
	var err error
	if w.Upstream, err = upstream.New(spec.Upstream{HTTP: url, HTTPS: url}); err != nil {
		t.Fatal(err)
	}
}

func (o *officeProxy) arrivals() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.requests)
}

func (o *officeProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.requests = append(o.requests, fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, strings.Join(r.Header["Proxy-Authorization"], "+")))
	o.mu.Unlock()
	port := r.URL.Port()
	if port == "" {
		port = "80"
	}
	if r.Method != http.MethodConnect {
		r.Header.Del("Proxy-Authorization")
		(&forwardingProxy{o.servers[port]}).ServeHTTP(w, r)
		return
	}
	server, err := net.Dial("tcp", o.servers[port])
	if err != nil || slices.Contains(o.denied, port) {
		http.Error(w, "secret page of the office", http.StatusForbidden)
		return
	}
	defer server.Close()
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		io.Copy(server, rw)
		server.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(c, server)
}

// A forwardingProxy sends requests on to one server.
type forwardingProxy struct{ server string }

func (p *forwardingProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, p.server)
	}}
	defer transport.CloseIdleConnections()
	r.RequestURI = ""
	answer, err := transport.RoundTrip(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.WriteHeader(answer.StatusCode)
	io.Copy(w, answer.Body)
}

const authorized = " Basic dmlzaXRvcjp3b3Jk" // visitor:word

// wordServer speaks first, and sends all bytes back.
func wordServer(t *testing.T, address string) {
	server(t, address, func(c *net.TCPConn) {
		io.WriteString(c, "hello\n")
		io.Copy(c, c)
	})
}

// The upstream proxy gets names, and whole URLs of plain HTTP. The host does not look names up. The passwords of the sandbox
// and of the proxy do not mix.
func TestAnUpstreamProxyGetsNames(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			w := newWorld(t, []string{"pypi.org", "pypi.org:22", "pypi.org:8080", "8.8.8.8:443", "10.0.0.9:7"}, nil, nil)
			s := newSite(t, public+":80")
			secureSite(t, public+":443")
			wordServer(t, public+":22")
			wordServer(t, "10.0.0.9:7")
			o := newOffice(t, w, map[string]string{"80": public + ":80", "8080": public + ":80", "443": public + ":443", "22": public + ":22"}, secure)

			plain := w.captured(t, w.address(t, "pypi.org", 80))
			c := dialTo(t, plain)
			io.WriteString(c, "POST /a?q HTTP/1.1\r\nHost: PyPI.org\r\nContent-Length: 4\r\nProxy-Authorization: Basic bWluZQ==\r\n\r\nbody"+
				"GET http://pypi.org/b HTTP/1.1\r\nHost: pypi.org\r\n\r\n"+"OPTIONS * HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\n\r\n")
			from := bufio.NewReader(c)
			for _, want := range []string{"/a of pypi.org", "/b of pypi.org"} {
				if status, body := readAnswer(t, from); status != 200 || body != want {
					t.Errorf("plain HTTP: %d %q, want %q", status, body, want)
				}
			}
			c.Close()
			client := &http.Client{Transport: &http.Transport{
				DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					to := w.captured(t, w.address(t, "pypi.org", 443))
					return (&tls.Dialer{Config: &tls.Config{ServerName: "pypi.org", InsecureSkipVerify: true}}).DialContext(ctx, "tcp", to)
				}, DisableKeepAlives: true,
			}}
			if body := get(t, client, "https://pypi.org/c"); body != "hello pypi.org" {
				t.Errorf("TLS: %q", body)
			}
			if word := echoed(t, dialTo(t, w.captured(t, w.address(t, "pypi.org", 22)))); word != "hello\nword\n" {
				t.Errorf("a server that speaks first: %q", word)
			}
			to := w.explicit(t)
			c = dialTo(t, to)
			io.WriteString(c, "CONNECT 10.0.0.9:7 HTTP/1.1\r\nHost: 10.0.0.9:7\r\n\r\n")
			if got := echoed(t, c); !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.HasSuffix(got, "hello\nword\n") {
				t.Errorf("an address that is not public: %q", got)
			}
			transport := &http.Transport{
				Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: to, User: url.UserPassword("me", "mine")}), TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			}
			defer transport.CloseIdleConnections()
			explicit := &http.Client{Transport: transport}
			for url, want := range map[string]string{"http://pypi.org:8080/d": "/d of pypi.org:8080", "https://pypi.org/e": "hello pypi.org", "https://8.8.8.8/f": "hello 8.8.8.8"} {
				if body := get(t, explicit, url); body != want {
					t.Errorf("%s: %q, want %q", url, body, want)
				}
			}
			got, want := o.arrivals(), []string{
				"POST http://pypi.org/a?q" + authorized, "GET http://pypi.org/b" + authorized, "OPTIONS http://pypi.org" + authorized,
				"CONNECT pypi.org:443" + authorized, "CONNECT pypi.org:22" + authorized,
				"GET http://pypi.org:8080/d" + authorized, "CONNECT pypi.org:443" + authorized, "CONNECT 8.8.8.8:443" + authorized,
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("the upstream proxy got %q\nwant %q", got, want)
			}
			if asked := w.questions(); len(asked) > 0 {
				t.Errorf("the host looked up %q", asked)
			}
			for _, r := range s.arrivals() {
				if strings.Contains(r, "bWluZQ") {
					t.Errorf("the server got the client's password for a proxy: %q", r)
				}
			}
		})
	}
}

func get(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	answer, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Errorf("%s: %v", url, err)
	}
	return string(body)
}

// echoed ends its side before it reads.
func echoed(t *testing.T, c *net.TCPConn) string {
	t.Helper()
	from := bufio.NewReader(c)
	first, _ := from.ReadString('\n')
	io.WriteString(c, "word\n")
	c.CloseWrite()
	rest, _ := io.ReadAll(from)
	return first + string(rest)
}

// A refusal ends the connection at once. The event names the upstream proxy, and the sandbox does not learn it.
func TestRefusalsOfAnUpstreamProxy(t *testing.T) {
	for _, x := range []refusal{
		{403, Denied, "the operator of the proxy can"}, {407, Denied, "a user and a password"}, {503, Failed, "may be down"},
		{0, Failed, "closed the connection without an answer"},
	} {
		t.Run(fmt.Sprint(x.status), x.isTold)
	}
}

// A refusal is an answer of an upstream proxy. Without a status there is no answer.
type refusal struct {
	status   int
	decision Decision
	want     string
}

func (x refusal) isTold(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, nil)
	server(t, office, func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil && x.status != 0 {
			fmt.Fprintf(c, "HTTP/1.1 %d Secret\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret", x.status)
		}
	})
	w.useUpstream(t, "http://visitor:word@"+office)
	check := func(what string) {
		t.Helper()
		e := w.event(t)
		isNamed := strings.Contains(e.Reason, "http://"+office) && e.Upstream == "http://"+office && !strings.Contains(e.Reason, "word@")
		if e.Decision != x.decision || !strings.Contains(e.Reason, x.want) || !isNamed {
			t.Errorf("%s: event %+v", what, e)
		}
	}
	secured := tls.Client(dialTo(t, w.captured(t, w.address(t, "pypi.org", 443))), &tls.Config{ServerName: "pypi.org"})
	if err := secured.Handshake(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("TLS: %v", err)
	}
	check("TLS")
	requests := []string{"CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n"}
	if x.status == 407 { // other answers of plain HTTP can be the server's
		requests = append(requests, "GET http://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	}
	wanted, to := map[Decision]int{Denied: 403, Failed: 502}[x.decision], w.explicit(t)
	for _, request := range requests {
		c := dialTo(t, to)
		io.WriteString(c, request)
		if status, body := readAnswer(t, bufio.NewReader(c)); status != wanted || strings.Contains(body, "ecret") || strings.Contains(body, office) {
			t.Errorf("%.7s: %d %q", request, status, body)
		}
		c.Close()
		check(request[:7])
	}
}

// No proxy is at the address.
func TestAnUnreachableUpstreamProxyIsNamed(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, nil)
	w.useUpstream(t, "http://visitor:word@127.0.0.1:9")
	c := dialTo(t, w.captured(t, w.address(t, "pypi.org", 80)))
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	if status, body := readAnswer(t, bufio.NewReader(c)); status != 502 || strings.Contains(body, "127.0.0.1") {
		t.Errorf("%d %q", status, body)
	}
	if e := w.event(t); e.Decision != Failed || !strings.Contains(e.Reason, "http://127.0.0.1:9 cannot be used: connection refused") {
		t.Errorf("event %+v", e)
	}
}

// Without a tunnel to the port a client of plain HTTP gets through, also one that is silent first.
func TestPlainHTTPNeedsNoTunnel(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "pypi.org:8080"}, nil, nil)
	newSite(t, public+":80")
	o := newOffice(t, w, map[string]string{"80": public + ":80", "8080": public + ":80"}, false, "80", "8080")
	for _, port := range []uint16{80, 8080} {
		c := dialTo(t, w.captured(t, w.address(t, "pypi.org", port)))
		time.Sleep(3 * silentTime)
		fmt.Fprintf(c, "GET /a HTTP/1.1\r\nHost: pypi.org:%d\r\n\r\n", port)
		if status, _ := readAnswer(t, bufio.NewReader(c)); status != 200 {
			t.Errorf("port %d: %d", port, status)
		}
		c.Close()
	}
	c := dialTo(t, w.explicit(t))
	io.WriteString(c, "CONNECT pypi.org:80 HTTP/1.1\r\nHost: pypi.org:80\r\n\r\n")
	from := bufio.NewReader(c)
	if answer, err := http.ReadResponse(from, &http.Request{Method: http.MethodConnect}); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %v, %v", answer, err)
	}
	io.WriteString(c, "GET /b HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	if status, body := readAnswer(t, from); status != 200 || body != "/b of pypi.org" {
		t.Errorf("in a tunnel: %d %q", status, body)
	}
	for _, r := range o.arrivals() {
		if strings.HasPrefix(r, "CONNECT pypi.org:80 ") {
			t.Errorf("the upstream proxy got %q", r)
		}
	}
}

// The rules are first. Names of the proxy's own machine are not asked of it, and addresses that are not public are not
// either.
func TestNoWayAroundTheRulesThroughAnUpstreamProxy(t *testing.T) {
	w := newWorld(t, []string{"*.org", "metadata.google.internal", "proxy.corp", "10.0.0.0/8"}, []string{"bad.org", "9.9.9.9:80"}, nil)
	seen := server(t, office, func(*net.TCPConn) {})
	var err error
	const url = "http://visitor:word@proxy.corp:3128"
	if w.Upstream, err = upstream.New(spec.Upstream{HTTP: url, HTTPS: url}); err != nil {
		t.Fatal(err)
	}
	to := w.explicit(t)
	for request, want := range map[string]string{
		"CONNECT bad.org:443":                  "--deny bad.org",
		"CONNECT evil.com:443":                 "add --allow evil.com",
		"CONNECT x.org:22":                     "add --allow x.org:22",
		"CONNECT metadata.google.internal:443": "metadata service",
		"GET http://metadata.google.internal/": "metadata service",
		"CONNECT proxy.corp:443":               "the upstream proxy itself",
		"GET http://PROXY.corp./":              "the upstream proxy itself",
		"CONNECT 127.0.0.1:443":                "the sandbox itself",
		"CONNECT 2130706433:443":               "no name ends in a number",
		"CONNECT localhost:443":                "localhost is the sandbox itself",
		"CONNECT 9.9.9.9:443":                  "not allowed",
	} {
		c := dialTo(t, to)
		target := strings.Fields(request)[1]
		host := strings.Trim(strings.TrimPrefix(target, "http:"), "/")
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: %s\r\n\r\n", request, host)
		if status, body := readAnswer(t, bufio.NewReader(c)); status != 403 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %q, want %q", request, status, body, want)
		}
		c.Close()
		if e := w.event(t); e.Decision != Denied {
			t.Errorf("%s: event %+v", request, e)
		}
	}
	if n := seen.count(); n > 0 {
		t.Errorf("%d connections to the upstream proxy", n)
	}
}

// The way out is in the event of a server that was not reached directly.
func TestAHintNamesTheUpstreamProxy(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, nil)
	w.Hint = "add --upstream-proxy env"
	c := dialTo(t, w.explicit(t))
	io.WriteString(c, "CONNECT pypi.org:443 HTTP/1.1\r\nHost: pypi.org:443\r\n\r\n")
	if status, body := readAnswer(t, bufio.NewReader(c)); status != 502 || strings.Contains(body, "--upstream-proxy") {
		t.Errorf("%d %q", status, body)
	}
	c.Close()
	if e := w.event(t); e.Decision != Failed || !strings.Contains(e.Reason, "no such host; add --upstream-proxy env") {
		t.Errorf("event %+v", e)
	}
}
