package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A site is a server of plain HTTP. It keeps the requests that arrive.
type site struct {
	mu       sync.Mutex
	requests []string
}

func newSite(t *testing.T, address string) *site {
	s := &site{}
	h := httptest.NewUnstartedServer(s)
	h.Listener.Close()
	h.Listener = listen(t, address)
	h.Start()
	t.Cleanup(h.CloseClientConnections)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, fmt.Sprintf("%s %s%s %s", r.Method, r.Host, r.RequestURI, body))
	s.mu.Unlock()
	if err != nil || r.Header.Get("Upgrade") == "" {
		fmt.Fprintf(w, "%s of %s", r.URL.Path, r.Host)
		return
	}
	if r.URL.Path != "/ws" {
		fmt.Fprint(w, "no upgrade here")
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x01!")
	io.Copy(c, rw)
}

func (s *site) arrivals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// readAnswer reads an answer and its body.
func readAnswer(t *testing.T, from *bufio.Reader) (int, string) {
	t.Helper()
	answer, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func TestEachRequestIsJudged(t *testing.T) {
	w := newWorld(t, []string{"GET,PUT pypi.org/simple", "other.example:80"}, nil, map[string][]string{"pypi.org": {public}})
	s := newSite(t, public+":80")
	to := w.captured(t, w.address(t, "pypi.org", 80))
	connections := 0
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		connections++
		return new(net.Dialer).DialContext(ctx, network, to)
	}}}
	for _, x := range []struct {
		method, url string
		status      int
	}{
		{"GET", "http://pypi.org/simple/a", 200},
		{"PUT", "http://pypi.org:80/simple/b?q", 200},
		{"POST", "http://pypi.org/simple/c", 403},
		{"GET", "http://pypi.org/simpler", 403},
		{"GET", "http://evil.org/simple/d", 403},
		{"GET", "http://other.example/simple/e", 403},
		{"GET", "http://pypi.org:81/simple/f", 403},
		{"GET", "http://PyPI.org/simple/g", 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), x.method, x.url, io.MultiReader(strings.NewReader("body"))) // chunked
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Errorf("%s %s: %v", x.method, x.url, err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		if answer.StatusCode != x.status || err != nil || (x.status == 403) != strings.HasPrefix(string(body), "sandbox-runtime: ") {
			t.Errorf("%s %s: %s, %q, error %v", x.method, x.url, answer.Status, body, err)
		}
		answer.Body.Close()
	}
	client.CloseIdleConnections()
	want := []string{"GET pypi.org/simple/a body", "PUT pypi.org:80/simple/b?q body", "GET PyPI.org/simple/g body"}
	if got := s.arrivals(); !slices.Equal(got, want) {
		t.Errorf("outside arrived %q, want %q", got, want)
	}
	for range connections {
		if e := w.event(t); e.Rule == "" && e.Decision != Denied {
			t.Errorf("event %+v", e)
		}
	}
}

// A refusal follows the answers to earlier requests.
func TestARefusalWaitsForEarlierAnswers(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, map[string][]string{"pypi.org": {public}})
	s := newSite(t, public+":80")
	to := w.captured(t, w.address(t, "pypi.org", 80))
	const good = "GET /1 HTTP/1.1\r\nHost: pypi.org\r\n\r\n"
	for bad, status := range map[string]int{
		"GET /2 HTTP/1.1\r\nHost: evil.org\r\n\r\n":                                                              403,
		"GET http://evil.org/2 HTTP/1.1\r\nHost: pypi.org\r\n\r\n":                                               400,
		"POST /2 HTTP/1.1\r\nHost: pypi.org\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
		"CONNECT pypi.org:80 HTTP/1.1\r\nHost: pypi.org:80\r\n\r\n":                                              400,
		"GET /ws HTTP/1.1\r\nHost: pypi.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n":                403,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                                       400,
	} {
		c := dialTo(t, to)
		io.WriteString(c, good+good+bad+"GET /3 HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
		from := bufio.NewReader(c)
		for range 2 {
			if status, body := readAnswer(t, from); status != 200 || body != "/1 of pypi.org" {
				t.Errorf("%q: first %d, %q", bad, status, body)
			}
		}
		if got, body := readAnswer(t, from); got != status || !strings.HasPrefix(body, "sandbox-runtime: ") {
			t.Errorf("%q: %d, %q; want %d", bad, got, body, status)
		}
		if rest, err := io.ReadAll(from); len(rest) > 0 || err != nil {
			t.Errorf("%q: then %q, error %v", bad, rest, err)
		}
		c.Close()
		if e := w.event(t); e.Decision != Denied || e.Sent != int64(2*len(good)) {
			t.Errorf("%q: event %+v", bad, e)
		}
	}
	for _, r := range s.arrivals() {
		if r != "GET pypi.org/1 " {
			t.Errorf("outside arrived %q", r)
		}
	}
}

// A reset would take the reason away from a client that is still sending.
func TestARefusedUploadGetsTheReason(t *testing.T) {
	w := newWorld(t, []string{"GET pypi.org"}, nil, nil)
	c := dialTo(t, w.captured(t, w.address(t, "pypi.org", 80)))
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: pypi.org\r\nContent-Length: %d\r\n\r\n", 512<<10)
	for range 8 {
		time.Sleep(5 * time.Millisecond)
		if _, err := c.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if status, body := readAnswer(t, bufio.NewReader(c)); status != 403 || !strings.Contains(body, `--allow "POST pypi.org`) {
		t.Errorf("%d, %q", status, body)
	}
}

func TestWebSocket(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "GET plain.example"}, nil, map[string][]string{"pypi.org": {public}, "plain.example": {public}})
	s := newSite(t, public+":80")
	to := w.captured(t, w.address(t, "pypi.org", 80))
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	for _, pause := range []time.Duration{0, 5 * silentTime} {
		c := dialTo(t, to)
		time.Sleep(pause)
		io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: pypi.org\r\n"+upgrade+"\x81\x01a")
		from := bufio.NewReader(c)
		answer, err := http.ReadResponse(from, nil)
		if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("after %v: %+v, error %v", pause, answer, err)
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n") // bytes like others now
		c.CloseWrite()
		if b, err := io.ReadAll(from); string(b) != "\x81\x01!\x81\x01aGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n" {
			t.Errorf("after %v: %q, error %v", pause, b, err)
		}
		if e := w.event(t); e.Decision != Allowed {
			t.Errorf("after %v: event %+v", pause, e)
		}
	}
	// Without the server's consent requests are judged as before.
	c := dialTo(t, to)
	from := bufio.NewReader(c)
	io.WriteString(c, "GET /no HTTP/1.1\r\nHost: pypi.org\r\n"+upgrade+"GET /a HTTP/1.1\r\nHost: pypi.org\r\n\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n")
	for _, want := range []int{200, 200, 403} {
		if status, body := readAnswer(t, from); status != want {
			t.Errorf("%d, %q, want %d", status, body, want)
		}
	}
	c.Close()
	w.event(t)
	// A rule for plain HTTP does not cover what follows.
	c = dialTo(t, w.captured(t, w.address(t, "plain.example", 80)))
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: plain.example\r\n"+upgrade)
	if status, body := readAnswer(t, bufio.NewReader(c)); status != 403 || !strings.Contains(body, "plain.example:80") {
		t.Errorf("%d, %q", status, body)
	}
	if got, want := s.arrivals(), []string{"GET pypi.org/ws ", "GET pypi.org/ws ", "GET pypi.org/no ", "GET pypi.org/a "}; !slices.Equal(got, want) {
		t.Errorf("outside arrived %q, want %q", got, want)
	}
}

// Clients with rules for plain HTTP only can be slow. Others find the connection reset at once.
func TestRulesForPlainHTTPWaitForTheRequest(t *testing.T) {
	w := newWorld(t, []string{"GET pypi.org"}, nil, map[string][]string{"pypi.org": {public}})
	newSite(t, public+":80")
	c := dialTo(t, w.captured(t, w.address(t, "pypi.org", 80)))
	time.Sleep(4 * deniedTime)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: pypi.org\r\n\r\n")
	if status, body := readAnswer(t, bufio.NewReader(c)); status != 200 {
		t.Errorf("%d, %q", status, body)
	}
	c.Close()
	w.event(t)
	c = dialTo(t, w.address(t, "pypi.org", 80).String())
	io.WriteString(c, "\x00")
	wantReset(t, "another protocol", c)
	if e := w.event(t); e.Decision != Denied || !strings.Contains(e.Reason, "plain HTTP") {
		t.Errorf("event %+v", e)
	}
}

func TestCurl(t *testing.T) {
	w := newWorld(t, []string{"pypi.org"}, nil, map[string][]string{"pypi.org": {public}})
	newSite(t, public+":80")
	to := w.captured(t, w.address(t, "pypi.org", 80))
	host, _, _ := net.SplitHostPort(to)
	out, err := exec.Command("curl", "-sS", "--noproxy", "*", "--http2", "-d", "x", "--resolve", "pypi.org:80:"+host, "http://pypi.org/a", "http://pypi.org/b").CombinedOutput()
	if err != nil || string(out) != "/a of pypi.org/b of pypi.org" {
		t.Errorf("%q, error %v", out, err)
	}
	out, err = exec.Command("curl", "-sS", "--noproxy", "*", "--connect-to", "::"+host+":80", "http://evil.org/").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "sandbox-runtime: ") {
		t.Errorf("%q, error %v", out, err)
	}
}
