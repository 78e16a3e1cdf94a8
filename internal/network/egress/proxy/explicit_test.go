package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// explicit serves the explicit proxy, and returns its address.
func (w *world) explicit(t *testing.T) string {
	return w.captured(t, netip.MustParseAddrPort(spec.ProxyServer))
}

// secureSite is a server of HTTPS.
func secureSite(t *testing.T, address string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.Host) }))
	s.Listener.Close()
	s.Listener = listen(t, address)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused clients
	s.StartTLS()
	t.Cleanup(s.Close)
}

// Real clients use one connection to the proxy for several hosts.
func TestProgramsAskTheProxy(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "other.example:80", "192.0.2.9"}, nil, map[string][]string{"pypi.org": {public}, "other.example": {public6}})
	s, s6, s9 := newSite(t, public+":80"), newSite(t, "["+public6+"]:80"), newSite(t, "192.0.2.9:80")
	secureSite(t, public+":443")
	to := w.explicit(t)
	transport := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: to}),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for _, x := range []struct{ url, want string }{
		{"http://pypi.org/a?q", "/a of pypi.org"},
		{"http://other.example/b", "/b of other.example"},
		{"http://PyPI.org:80/c", "/c of PyPI.org:80"},
		{"http://192.0.2.9/d", "/d of 192.0.2.9"},
		{"https://pypi.org/e", "hello pypi.org"},
		{"http://evil.org/f", "sandbox-runtime: evil.org:80 is not allowed; add --allow evil.org\n"},
		{"http://other.example:81/g", "sandbox-runtime: other.example:81 is not allowed; add --allow other.example:81\n"},
		{"http://localhost/h", "sandbox-runtime: localhost is the sandbox itself; connect to it without the proxy: add localhost to NO_PROXY and no_proxy\n"},
	} {
		answer, err := client.Post(x.url, "text/plain", io.MultiReader(strings.NewReader("body")))
		if err != nil {
			t.Errorf("%s: %v", x.url, err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if string(body) != x.want || err != nil {
			t.Errorf("%s: %q, error %v; want %q", x.url, body, err, x.want)
		}
	}
	var refused *url.Error
	if _, err := client.Get("https://evil.org/"); !errors.As(err, &refused) || !strings.Contains(err.Error(), "add --allow evil.org") {
		t.Errorf("CONNECT to another host: %v", err)
	}
	if got, want := s.arrivals(), []string{"POST pypi.org/a?q body", "POST PyPI.org:80/c body"}; !slices.Equal(got, want) {
		t.Errorf("outside arrived %q, want %q", got, want)
	}
	if len(s6.arrivals()) != 1 || len(s9.arrivals()) != 1 {
		t.Errorf("outside arrived %q and %q", s6.arrivals(), s9.arrivals())
	}
}

func TestCurlAsksTheProxy(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "other.example"}, nil, map[string][]string{"pypi.org": {public}, "other.example": {public}})
	newSite(t, public+":80")
	secureSite(t, public+":443")
	proxy := "http://" + w.explicit(t)
	out, err := exec.Command("curl", "-sSk", "-x", proxy, "-d", "x", "http://pypi.org/a", "http://other.example/b", "https://other.example/").CombinedOutput()
	if want := "/a of pypi.org/b of other.examplehello other.example"; err != nil || string(out) != want {
		t.Errorf("%q, error %v; want %q", out, err, want)
	}
	out, err = exec.Command("curl", "-sSv", "-x", proxy, "https://evil.org/").CombinedOutput()
	if want := "403 evil.org:443 is not allowed; add --allow evil.org"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("%q, error %v; want %q", out, err, want)
	}
}

// One connection has an event for each host that it reaches, or is refused.
func TestAConnectionIsReusedForOtherHosts(t *testing.T) {
	w := newWorld(t, []string{"GET pypi.org/simple", "other.example"}, nil, map[string][]string{"pypi.org": {public}, "other.example": {public}})
	s := newSite(t, public+":80")
	c := dialTo(t, w.explicit(t))
	from := bufio.NewReader(c)
	for _, x := range []struct {
		url    string
		status int
	}{
		{"http://pypi.org/simple/1", 200}, {"http://pypi.org/simple/2", 200}, {"http://other.example/3", 200},
		{"http://pypi.org/simple/4", 200}, {"http://pypi.org/5", 403},
	} {
		u, _ := url.Parse(x.url)
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", x.url, u.Host)
		if status, body := readAnswer(t, from); status != x.status {
			t.Errorf("%s: %d, %q", x.url, status, body)
		}
	}
	if b, err := io.ReadAll(from); len(b) > 0 || err != nil {
		t.Errorf("%q, error %v", b, err)
	}
	c.Close()
	for _, want := range []Event{
		{Name: "pypi.org", Decision: Allowed, Rule: "GET pypi.org/simple"},
		{Name: "other.example", Decision: Allowed, Rule: "other.example"},
		{Name: "pypi.org", Decision: Denied},
	} {
		e := w.event(t)
		if e.Name != want.Name || e.Decision != want.Decision || e.Rule != want.Rule || e.Port != 80 || e.Sent == 0 || e.Received == 0 || e.Address.Addr().String() != public {
			t.Errorf("event %+v; want %+v", e, want)
		}
	}
	if got, want := s.arrivals(), []string{"GET pypi.org/simple/1 ", "GET pypi.org/simple/2 ", "GET other.example/3 ", "GET pypi.org/simple/4 "}; !slices.Equal(got, want) {
		t.Errorf("outside arrived %q, want %q", got, want)
	}
}

// Nothing arrives outside.
func TestHostileRequestsToTheProxy(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "db.example:5432", "GET plain.example:81", "10.0.0.1:7", "0.0.0.0/0:9"}, []string{"bad.pypi.org"},
		map[string][]string{"pypi.org": {"10.0.0.2"}, "plain.example": {public}})
	outside := []*connectionCounter{server(t, public+":80", echo), server(t, public+":443", echo), server(t, "10.0.0.2:80", echo), server(t, "127.0.0.1:9", echo)}
	synthetic := w.address(t, "db.example", 80).Addr().String()
	get := func(host string) string { return "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	connect := func(to string) string { return "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n\r\n" }
	const good = "http://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n"
	to := w.explicit(t)
	for text, x := range map[string]struct {
		status int
		reason string
	}{
		get("pypi.org"):                {403, "not allowed"},
		connect("pypi.org:443"):        {403, "not allowed"},
		get("evil.org"):                {403, "--allow evil.org"},
		get("bad.pypi.org"):            {403, "--deny bad.pypi.org"},
		connect("evil.org:443"):        {403, "--allow evil.org"},
		connect("pypi.org:25"):         {403, "--allow pypi.org:25"},
		connect("db.example:443"):      {403, "--allow db.example:443"},
		connect("8.8.8.8:443"):         {403, "--allow 8.8.8.8:443"},
		get("8.8.8.8"):                 {403, "--allow 8.8.8.8:80"},
		connect("9.9.9.9:9"):           {403, "9.9.9.9:9 is not allowed"},
		connect("127.0.0.1:9"):         {403, "the sandbox itself"},
		connect("127.9.9.9:9"):         {403, "127.9.9.9 is the sandbox itself; connect to it without the proxy: add 127.9.9.9 to NO_PROXY"},
		connect("0.0.0.0:9"):           {403, "0.0.0.0 is the sandbox itself; connect to it without the proxy: add 0.0.0.0 to NO_PROXY"},
		get("[::1]:9"):                 {403, "::1 is the sandbox itself; connect to it without the proxy: add ::1 to NO_PROXY"},
		get("198.18.0.2:9"):            {403, "198.18.0.2 is the sandbox itself; connect to it without the proxy: add 198.18.0.2 to NO_PROXY"},
		connect("198.18.0.1:9"):        {403, "the sandbox itself"},
		connect("[fd53::1]:3128"):      {403, "the sandbox itself"},
		connect("[::ffff:10.0.0.1]:7"): {403, "connect to 10.0.0.1:7"},
		connect("[::ffff:a00:1]:7"):    {403, "connect to 10.0.0.1:7"},
		connect(synthetic + ":443"):    {403, "--allow db.example:443"},
		get(synthetic + ":5432"):       {403, "at an address of db.example"},
		connect("2130706433:9"):        {403, "no name ends in a number"},
		connect("0177.0.0.1:9"):        {403, "no name ends in a number"},
		connect("0x7f000001:9"):        {403, "no name ends in a number"},
		connect("0x7f.1:9"):            {403, "no name ends in a number"},
		connect("127.0.0.1.:9"):        {403, "no name ends in a number"},
		connect("10.1:7"):              {403, "no name ends in a number"},
		connect("a..example:80"):       {403, "cannot be a name"},
		connect("x.localhost:9"):       {403, "NO_PROXY"},
		connect("[fe80::1%25lo]:9"):    {400, "zone"},
		connect("pypi.org"):            {400, "no port"},
		"CONNECT pypi.org:443 HTTP/1.1\r\nHost: evil.org:443\r\n\r\n":                                           {400, "differ"},
		"GET http://pypi.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n":                                               {400, "differ"},
		"GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                                              {400, "whole URL"},
		"GET https://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                              {400, "use CONNECT"},
		"POST " + good + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.org/": {400, "several lengths"},
		"POST " + good + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n":                                       {400, "several lengths"},
		"POST " + good + "Transfer-Encoding : chunked\r\n\r\n":                                                  {400, "malformed field"},
		"GET " + good + "X: a\nHost: evil.org\r\n\r\n":                                                          {400, "CRLF"},
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                                      {400, "HTTP/2.0"},
		connect(strings.Repeat("a.", 200) + "example:80"):                                                       {400, "the most are 253"},
	} {
		c := dialTo(t, to)
		io.WriteString(c, text)
		status, body := readAnswer(t, bufio.NewReader(c))
		if status != x.status || !strings.Contains(body, x.reason) {
			t.Errorf("%.200q: %d, %q; want %d, %q", text, status, body, x.status, x.reason)
		}
		c.Close()
		if e := w.event(t); e.Decision != Denied || e.Sent != 0 || len(e.Name) > 253 || e.Reason == "" {
			t.Errorf("%.200q: event %+v", text, e)
		}
	}
	for _, text := range []string{"\x16\x03\x01", "\x05\x01\x00", "SSH-2.0-x\r\n"} {
		c := dialTo(t, to)
		io.WriteString(c, text)
		c.CloseWrite()
		wantReset(t, text, c)
		if e := w.event(t); e.Decision != Denied || e.Address.String() != spec.ProxyServer {
			t.Errorf("%q: event %+v", text, e)
		}
	}
	for i, o := range outside {
		if o.count() > 0 {
			t.Errorf("server %d has %d connections", i, o.count())
		}
	}
}

// tunnel opens a tunnel, and fails the test without one.
func tunnel(t *testing.T, proxy, to string) *net.TCPConn {
	t.Helper()
	c := dialTo(t, proxy)
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	head := make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n"))
	if _, err := io.ReadFull(c, head); err != nil || !strings.HasPrefix(string(head), "HTTP/1.1 200 ") {
		t.Fatalf("%s: %q, error %v", to, head, err)
	}
	return c
}

// The end of a sandbox's network is no fault of a client that has sent nothing yet.
func TestAnEndedClientOfTheProxyIsNotDenied(t *testing.T) {
	w := newWorld(t, nil, nil, nil)
	l := listen(t, spec.ProxyServer)
	client := dialTo(t, spec.ProxyServer)
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	serve(ctx, c, w.Sandbox, time.Minute)
	wantReset(t, "the client", client)
	if e := w.event(t); e.Decision != Failed || e.Reason != errEnded.Error() {
		t.Errorf("event %+v", e)
	}
}

// Browsers open connections to a proxy in advance, and may never use them.
func TestAClientOfTheProxyWithoutARequestIsNotDenied(t *testing.T) {
	w := newWorld(t, nil, nil, nil)
	dialTo(t, w.explicit(t)).Close()
	if e := w.event(t); e.Decision != Failed || e.Reason != errNoRequest.Error() {
		t.Errorf("event %+v", e)
	}
}

// Clients such as pip and go show the status line of an answer to CONNECT, and no body.
func TestTheStatusLineAfterConnectHasTheReason(t *testing.T) {
	w := newWorld(t, []string{"unknown.example"}, []string{"bad.example ; ask Zo\u00eb"}, nil)
	to := w.explicit(t)
	for name, want := range map[string]string{
		"evil.org":        "403 evil.org:443 is not allowed; add --allow evil.org",
		"bad.example":     "403 --deny bad.example denies bad.example:443; deny rules win over allow rules: ask Zo?",
		"unknown.example": "502 look up unknown.example: no such host",
	} {
		c := dialTo(t, to)
		fmt.Fprintf(c, "CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", name)
		if line, err := bufio.NewReader(c).ReadString('\n'); line != "HTTP/1.1 "+want+"\r\n" {
			t.Errorf("%s: %q, error %v; want %q", name, line, err, want)
		}
		c.Close()
		w.event(t)
	}
}

// The bytes after CONNECT are judged like those of a captured connection.
func TestTunnelsAreJudged(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "*.pypi.org", "pypi.org:25", "GET plain.example:81", "192.0.2.9:443"}, nil,
		map[string][]string{"pypi.org": {public}, "plain.example": {public}})
	s, plain := newSite(t, public+":80"), newSite(t, public+":81")
	secureSite(t, public+":443")
	server(t, "192.0.2.9:443", echo)
	server(t, public+":25", func(c *net.TCPConn) { io.WriteString(c, "220 hello\r\n"); echo(c) })
	proxy := w.explicit(t)
	synthetic := w.address(t, "pypi.org", 443).String()
	for _, x := range []struct{ to, name, reason string }{
		{"pypi.org:443", "pypi.org", ""}, {"PYPI.org.:443", "pypi.org", ""}, {synthetic, "pypi.org", ""},
		{"pypi.org:443", "evil.org", `"evil.org"`}, {"pypi.org:443", "files.pypi.org", `"files.pypi.org"`},
		{"pypi.org:443", "127.0.0.1", "without a server name"}, {synthetic, "evil.org", `"evil.org"`},
	} {
		c := tls.Client(tunnel(t, proxy, x.to), &tls.Config{ServerName: x.name, InsecureSkipVerify: true})
		err := c.Handshake()
		if x.reason == "" && err != nil || x.reason != "" && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%+v: %v", x, err)
		}
		c.Close()
		e := w.event(t)
		if (e.Decision == Denied) != (x.reason != "") || !strings.Contains(e.Reason, x.reason) || e.Name != "pypi.org" || e.Port != 443 {
			t.Errorf("%+v: event %+v", x, e)
		}
	}
	// The server speaks first.
	c := tunnel(t, proxy, "pypi.org:25")
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "220 hello\r\n" {
		t.Errorf("%q, error %v", line, err)
	}
	c.Close()
	w.event(t)
	// An address has no name, and nothing inside is judged. The bytes may come before the answer.
	c = dialTo(t, proxy)
	io.WriteString(c, "CONNECT 192.0.2.9:443 HTTP/1.1\r\n\r\nGET http://evil.org/")
	c.CloseWrite()
	if b, err := io.ReadAll(c); string(b) != "HTTP/1.1 200 Connection established\r\n\r\nGET http://evil.org/" {
		t.Errorf("%q, error %v", b, err)
	}
	if e := w.event(t); e.Decision != Allowed || e.Address.String() != "192.0.2.9:443" || e.Name != "" {
		t.Errorf("event %+v", e)
	}
	// Plain HTTP in a tunnel is judged, also where only plain HTTP is allowed.
	for to, statuses := range map[string][]int{"pypi.org:80": {200, 403}, "plain.example:81": {200, 403}} {
		c := tunnel(t, proxy, to)
		from := bufio.NewReader(c)
		for i, host := range []string{to, "evil.org"} {
			fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", host)
			if status, body := readAnswer(t, from); status != statuses[i] {
				t.Errorf("%s in a tunnel to %s: %d, %q", host, to, status, body)
			}
		}
		c.Close()
		w.event(t)
	}
	c = tunnel(t, proxy, "plain.example:81")
	io.WriteString(c, "\x00")
	wantReset(t, "another protocol", c)
	if e := w.event(t); e.Decision != Denied || e.Sent != 0 {
		t.Errorf("event %+v", e)
	}
	if len(s.arrivals()) != 1 || len(plain.arrivals()) != 1 {
		t.Errorf("outside arrived %q and %q", s.arrivals(), plain.arrivals())
	}
}

// CONNECT and WebSocket need a connection of their own, since the bytes after them are not judged by request.
func TestOnlyAFirstRequestOpensATunnel(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "192.0.2.9"}, nil, map[string][]string{"pypi.org": {public}})
	newSite(t, public+":80")
	newSite(t, "192.0.2.9:80")
	proxy := w.explicit(t)
	const webSocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	for _, host := range []string{"pypi.org", "192.0.2.9"} {
		socket := "GET http://" + host + "/ws HTTP/1.1\r\nHost: " + host + "\r\n" + webSocket
		for _, second := range []string{"CONNECT " + host + ":80 HTTP/1.1\r\n\r\n", socket} {
			c := dialTo(t, proxy)
			from := bufio.NewReader(c)
			fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n%s", host, host, second)
			for _, want := range []int{200, 403} {
				if status, body := readAnswer(t, from); status != want {
					t.Errorf("%q: %d, %q; want %d", second, status, body, want)
				}
			}
		}
		c := dialTo(t, proxy)
		io.WriteString(c, socket+"\x81\x01a")
		from := bufio.NewReader(c)
		answer, err := http.ReadResponse(from, nil)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v, error %v", answer, err)
		}
		c.CloseWrite()
		if b, err := io.ReadAll(from); string(b) != "\x81\x01!\x81\x01a" {
			t.Errorf("%q, error %v", b, err)
		}
	}
}

// An answer ends where the client sees its end. Otherwise the client would take bytes of one host for those
// of another.
func TestAnswersToTheProxyHaveClearEnds(t *testing.T) {
	const next = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":                                         "okA",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + next:                                  "ok",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\nT: y\r\n\r\n":    "okA",
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n":                        "A",
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok":                    "ok",
		"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok":                                         "ok",
		"HTTP/1.1 200 OK\r\n\r\nok" + next:                                                       "ok" + next,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok":                    "",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":    "",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok":                                   "",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                         "",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n!": "",
		"nonsense\r\n\r\n": "",
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxHead): "",
	} {
		t.Run("", func(t *testing.T) {
			w := newWorld(t, []string{"*.example"}, nil, map[string][]string{"a.example": {public}, "b.example": {public6}})
			server(t, public+":80", func(c *net.TCPConn) {
				http.ReadRequest(bufio.NewReader(c))
				io.WriteString(c, answer)
			})
			newSite(t, "["+public6+"]:80")
			c := dialTo(t, w.explicit(t))
			from := bufio.NewReader(c)
			io.WriteString(c, "GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\nGET http://b.example/A HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n")
			var got string
			for {
				r, err := http.ReadResponse(from, nil)
				if err != nil {
					break
				}
				b, err := io.ReadAll(r.Body)
				if err != nil {
					break
				}
				if r.StatusCode == http.StatusSwitchingProtocols {
					got += "switched"
				}
				got += strings.TrimSuffix(string(b), " of b.example")
			}
			if strings.ReplaceAll(got, "/A", "A") != want {
				t.Errorf("%.200q: got %q, want %q", answer, got, want)
			}
		})
	}
}

// A server that has ended its silent connection gets a new one.
func TestTheProxyConnectsAgain(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, map[string][]string{"pypi.org": {public}})
	ended := make(chan struct{}, 2)
	s := server(t, public+":80", func(c *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		c.Close()
		ended <- struct{}{}
	})
	c := dialTo(t, w.explicit(t))
	from := bufio.NewReader(c)
	for range 2 {
		io.WriteString(c, "GET http://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
		if status, body := readAnswer(t, from); status != 200 || body != "ok" {
			t.Errorf("%d, %q", status, body)
		}
		<-ended
	}
	if s.count() != 2 {
		t.Errorf("%d connections", s.count())
	}
}

// The end of the context ends a request and its answer.
func TestTheEndOfTheContextResetsTheProxy(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, map[string][]string{"pypi.org": {public}})
	arrived := make(chan struct{})
	server(t, public+":80", func(c *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(c))
		close(arrived)
		io.Copy(io.Discard, c)
	})
	client, served := pair(t, "["+proxy6+"]:3128")
	ctx, cancel := context.WithCancel(t.Context())
	go Serve(ctx, served, w.Sandbox)
	io.WriteString(client, "GET http://pypi.org/ HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	<-arrived
	cancel()
	wantReset(t, "an exchange", client)
	if e := w.event(t); e.Name != "pypi.org" || e.Sent == 0 {
		t.Errorf("event %+v", e)
	}
}
