package proxy

import (
	"bufio"
	"bytes"
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
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/rules"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

const public, public6 = "8.8.8.8", "2001:4860:4860::8888"

// echo sends back everything until the end.
func echo(c *net.TCPConn) {
	io.Copy(c, c)
	c.CloseWrite()
}

// wantReset checks that the connection is reset, and that nothing came before.
func wantReset(t *testing.T, what string, c net.Conn) {
	t.Helper()
	start := time.Now()
	b, err := io.ReadAll(c)
	if !errors.Is(err, syscall.ECONNRESET) || len(b) > 0 {
		t.Errorf("%s: got %q, error %v; want a reset", what, b, err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("%s: the reset took %v", what, took)
	}
}

func TestBytesPassInBothDirections(t *testing.T) {
	w := newWorld(t, []string{"pypi.org:7"}, nil, map[string][]string{"pypi.org": {public}})
	server(t, public+":7", echo)
	c := dialTo(t, w.captured(t, w.address(t, "pypi.org", 7)))
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	sent[0] = 0xff
	go func() {
		c.Write(sent)
		c.CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, error %v", len(got), err)
	}
	c.Close()
	e := w.event(t)
	if e.Name != "pypi.org" || e.Port != 7 || e.Address.String() != public+":7" || e.Decision != Allowed || e.Rule != "pypi.org:7" ||
		e.Sent != int64(len(sent)) || e.Received != int64(len(sent)) || e.Reason != "" || e.Time.IsZero() || e.Duration <= 0 {
		t.Errorf("event %+v", e)
	}
}

// The server may speak first, and either side may end first.
func TestServersSpeakFirst(t *testing.T) {
	w := newWorld(t, []string{"mail.example:25"}, nil, map[string][]string{"mail.example": {public6}})
	server(t, "["+public6+"]:25", func(c *net.TCPConn) {
		io.WriteString(c, "220 hello\r\n")
		b, _ := io.ReadAll(c)
		fmt.Fprintf(c, "read %q\r\n", b)
	})
	c := dialTo(t, w.captured(t, w.address(t, "mail.example", 25)))
	lines := bufio.NewReader(c)
	if line, err := lines.ReadString('\n'); line != "220 hello\r\n" {
		t.Fatalf("%q, error %v", line, err)
	}
	io.WriteString(c, "EHLO x\r\n")
	c.CloseWrite()
	if rest, err := io.ReadAll(lines); string(rest) != "read \"EHLO x\\r\\n\"\r\n" {
		t.Errorf("%q, error %v", rest, err)
	}
	if e := w.event(t); e.Decision != Allowed || e.Sent != 8 || e.Address.String() != "["+public6+"]:25" {
		t.Errorf("event %+v", e)
	}
}

func TestTheServerMayEndFirst(t *testing.T) {
	w := newWorld(t, []string{"pypi.org:7"}, nil, map[string][]string{"pypi.org": {public}})
	got := make(chan string, 1)
	server(t, public+":7", func(c *net.TCPConn) {
		io.WriteString(c, "bye")
		c.CloseWrite()
		b, _ := io.ReadAll(c)
		got <- string(b)
	})
	c := dialTo(t, w.captured(t, w.address(t, "pypi.org", 7)))
	io.WriteString(c, "\x00")
	if b, err := io.ReadAll(c); string(b) != "bye" || err != nil {
		t.Fatalf("%q, error %v", b, err)
	}
	io.WriteString(c, "more")
	c.CloseWrite()
	if b := <-got; b != "\x00more" {
		t.Errorf("the server got %q", b)
	}
}

func TestTLSMustAskForTheName(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "*.pypi.org"}, nil, map[string][]string{"pypi.org": {public}})
	https := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.Host) }))
	https.Listener.Close()
	https.Listener = listen(t, public+":443")
	https.Config.ErrorLog = log.New(io.Discard, "", 0) // refused clients
	https.StartTLS()
	defer https.Close()
	to := w.captured(t, w.address(t, "pypi.org", 443))
	client := func(server string) error {
		c := tls.Client(dialTo(t, to), &tls.Config{ServerName: server, InsecureSkipVerify: true})
		defer c.Close()
		return c.Handshake()
	}
	for _, name := range []string{"pypi.org", "PyPI.org"} {
		if err := client(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if e := w.event(t); e.Decision != Allowed || e.Rule != "pypi.org" || e.Received == 0 {
			t.Errorf("%s: event %+v", name, e)
		}
	}
	for name, reason := range map[string]string{"evil.org": `"evil.org"`, "files.pypi.org": `"files.pypi.org"`, "127.0.0.1": "without a server name"} {
		if err := client(name); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: error %v, want a reset", name, err)
		}
		if e := w.event(t); e.Decision != Denied || e.Sent != 0 || !strings.Contains(e.Reason, reason) {
			t.Errorf("%s: event %+v", name, e)
		}
	}
	// A client that waits is judged all the same.
	c := dialTo(t, to)
	time.Sleep(3 * silentTime)
	if err := tls.Client(c, &tls.Config{ServerName: "evil.org", InsecureSkipVerify: true}).Handshake(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a slow client: error %v, want a reset", err)
	}
	if e := w.event(t); e.Decision != Denied || e.Sent != 0 {
		t.Errorf("a slow client: event %+v", e)
	}
}

func TestPortsOfOtherNamesAreReset(t *testing.T) {
	w := newWorld(t, []string{"pypi.org", "db.example:5432"}, []string{"8.8.4.4"}, map[string][]string{"pypi.org": {public}, "db.example": {public}})
	outside := server(t, public+":5432", echo)
	c := w.connect(t, w.address(t, "pypi.org", 5432))
	wantReset(t, "a silent client", c)
	e := w.event(t)
	if e.Decision != Denied || !strings.Contains(e.Reason, "--allow pypi.org:5432") || e.Address.IsValid() {
		t.Errorf("event %+v", e)
	}
	// A client that is slower than the reset does not get the reason. Under load the test's client may be.
	body := ""
	for range 20 {
		c := w.connect(t, w.address(t, "pypi.org", 5432))
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: pypi.org:5432\r\n\r\n")
		b, _ := io.ReadAll(c)
		c.Close()
		if e := w.event(t); e.Decision != Denied {
			t.Errorf("event %+v", e)
		}
		if body = string(b); body != "" {
			break
		}
	}
	if !strings.HasPrefix(body, "HTTP/1.1 403 pypi.org:5432 is not allowed; add --allow pypi.org:5432\r\n") || !strings.Contains(body, "--allow pypi.org:5432") {
		t.Errorf("plain HTTP got %q", body)
	}
	if n := outside.count(); n > 0 || len(w.questions()) > 0 {
		t.Errorf("%d connections left, and questions for %q", n, w.questions())
	}
}

func TestAddresses(t *testing.T) {
	w := newWorld(t, []string{"9.9.9.0/24:7", "10.0.0.1:7", "1.1.1.1:7", "0.0.0.0/0:9"}, []string{"1.1.1.1"}, nil)
	for to, isAllowed := range map[string]bool{
		"9.9.9.8:7": true, "9.9.9.9:7": false, "10.0.0.1:7": true, "10.0.0.2:7": false, "1.1.1.1:7": false,
		"198.18.9.9:9": false, "198.18.0.2:9": false, "127.0.0.9:9": false, "[::1]:9": false, "[fd53:0:0:1::500]:9": false,
	} {
		client, served := pair(t, to)
		outside := server(t, to, echo)
		go serve(t.Context(), served, w.Sandbox, time.Minute)
		if isAllowed {
			io.WriteString(client, "GET http://evil.org/ HTTP/1.1\r\n\r\n") // nothing inside is judged
			client.CloseWrite()
			if b, err := io.ReadAll(client); string(b) != "GET http://evil.org/ HTTP/1.1\r\n\r\n" {
				t.Errorf("%s: %q, error %v", to, b, err)
			}
		} else {
			wantReset(t, to, client)
		}
		if e := w.event(t); (e.Decision == Allowed) != isAllowed || e.Name != "" || e.Address.String() != to {
			t.Errorf("%s: event %+v", to, e)
		}
		if n := outside.count(); (n == 1) != isAllowed {
			t.Errorf("%s has %d connections", to, n)
		}
	}
}

// connect serves one connection, which is there before the proxy can reset it.
func (w *world) connect(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	client, served := pair(t, to.String())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(ctx, served, w.Sandbox, time.Minute)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return client
}

// pair is a connection to an address at which a server can listen afterwards.
func pair(t *testing.T, to string) (client, served *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client = dialTo(t, l.Addr().String())
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, c.(*net.TCPConn)
}

// What a name leads to is checked when the proxy dials.
func TestNamesLeadToPublicAddressesOnly(t *testing.T) {
	w := newWorld(t, []string{"*.example:7", "10.0.0.1:7", "9.9.0.0/16:7"}, []string{"1.1.1.0/24"}, map[string][]string{
		"loopback.example": {"127.0.0.1"}, "six.example": {"::1"}, "zero.example": {"0.0.0.0", "::"}, "private.example": {"10.0.0.2"},
		"metadata.example": {"169.254.169.254"}, "cgnat.example": {"100.64.0.1"}, "ula.example": {"fd00::1"}, "link.example": {"fe80::1"},
		"mapped.example": {"::ffff:10.0.0.2"}, "nat64.example": {"64:ff9b::a00:2"}, "local64.example": {"64:ff9b:1::a00:2"},
		"six2four.example": {"2002:a00:2::1"}, "teredo.example": {"2001::1"}, "multicast.example": {"224.0.0.1", "ff02::1"},
		"ours.example": {"198.18.1.0", "fd53::2"}, "denied.example": {"1.1.1.1"}, "host.example": {"9.9.9.9"},
		"both.example": {"10.0.0.2", public}, "named.example": {"10.0.0.1"}, "public.example": {public6},
		"many.example": append(slices.Repeat([]string{"10.0.0.3"}, 1000), public), "some.example": append(slices.Repeat([]string{"10.0.0.3"}, 3), public),
	})
	outside := map[string]*connectionCounter{}
	for _, a := range []string{public, public6, "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1", "::1", "1.1.1.1", "9.9.9.9", "64:ff9b::a00:2", "2002:a00:2::1", "169.254.169.254"} {
		outside[a] = server(t, net.JoinHostPort(a, "7"), echo)
	}
	ok := map[string]string{"both.example": public, "named.example": "10.0.0.1", "public.example": public6, "some.example": public}
	for name := range w.records {
		name = strings.TrimSuffix(name, ".")
		c := w.connect(t, w.address(t, name, 7))
		io.WriteString(c, "\x00")
		c.CloseWrite()
		if a := ok[name]; a != "" {
			if b, err := io.ReadAll(c); string(b) != "\x00" {
				t.Errorf("%s: %q, error %v", name, b, err)
			}
			if e := w.event(t); e.Decision != Allowed || e.Address.Addr() != netip.MustParseAddr(a) {
				t.Errorf("%s: event %+v", name, e)
			}
			continue
		}
		wantReset(t, name, c)
		if e := w.event(t); e.Decision != Denied || e.Address.IsValid() || e.Reason == "" {
			t.Errorf("%s: event %+v", name, e)
		}
	}
	for a, s := range outside {
		if want := map[string]int{public: 2, public6: 1, "10.0.0.1": 1}[a]; s.count() != want {
			t.Errorf("%s has %d connections, want %d", a, s.count(), want)
		}
	}
}

// laterRules deny an address when they are asked again.
type laterRules struct {
	fixedRules
	asked atomic.Int32
}

func (l *laterRules) Address(a netip.Addr, port uint16) rules.Verdict {
	if l.asked.Add(1) > 1 {
		return rules.Verdict{Rule: "later", Reason: "it is denied now"}
	}
	return l.fixedRules.Address(a, port)
}

// The rules are asked last for the address of the connection, also if several addresses were dialled.
func TestTheAddressOfTheConnectionIsJudgedAgain(t *testing.T) {
	w := newWorld(t, []string{"later.example:7"}, nil, map[string][]string{"later.example": {public}})
	arrived := server(t, public+":7", echo)
	w.Rules = &laterRules{fixedRules: w.Rules.(fixedRules)} //nolint:forcetypeassert // of newWorld
	c := w.connect(t, w.address(t, "later.example", 7))
	io.WriteString(c, "\x00")
	wantReset(t, "denied while the server was dialled", c)
	if e := w.event(t); e.Decision != Denied || e.Rule != "later" {
		t.Errorf("event %+v", e)
	}
	testhost.Eventually(t, "the server counts the connection", func() bool { return arrived.count() == 1 })
}

func TestUnknownNamesAndServersFail(t *testing.T) {
	w := newWorld(t, []string{"*.example:7", "*.example:80"}, nil, map[string][]string{"closed.example": {public}})
	for name, reason := range map[string]string{"closed.example": "refused", "unknown.example": "no such host"} {
		c := w.connect(t, w.address(t, name, 7))
		io.WriteString(c, "\x00")
		wantReset(t, name, c)
		if e := w.event(t); e.Decision != Failed || !strings.HasSuffix(e.Reason, reason) || strings.Contains(e.Reason, "127.0.0.1") {
			t.Errorf("%s: event %+v", name, e)
		}
		c = w.connect(t, w.address(t, name, 80))
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name)
		if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || answer.StatusCode != http.StatusBadGateway {
			t.Errorf("%s: %+v, error %v", name, answer, err)
		}
		c.Close()
		w.event(t)
	}
	for _, asked := range w.questions() {
		if !strings.HasSuffix(asked, ".example.") {
			t.Errorf("the name servers were asked for %s", asked)
		}
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	w := newWorld(t, []string{"*.example:7"}, nil, map[string][]string{"busy.example": {public}, "silent.example": {public}})
	const idle = 1500 * time.Millisecond
	server(t, public+":7", func(c *net.TCPConn) {
		for range 10 { // only one direction is busy
			io.WriteString(c, "x")
			time.Sleep(idle / 6)
		}
		io.Copy(io.Discard, c)
	})
	clients := map[string]net.Conn{}
	for name, text := range map[string]string{"busy.example": "\x00", "silent.example": ""} {
		clients[name] = dialTo(t, w.capturedIdle(t, w.address(t, name, 7), idle))
		io.WriteString(clients[name], text)
	}
	for name, c := range clients {
		if b, err := io.ReadAll(c); len(b) != 10 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: got %q, error %v", name, b, err)
		}
		if e := w.event(t); e.Duration < 2*idle || e.Received != 10 || e.Decision != Allowed || e.Reason == "" {
			t.Errorf("event %+v", e)
		}
	}
}

// A pipe would be four open files more for each connection.
func TestSilentConnectionsHoldNoPipes(t *testing.T) {
	pipes := func() (n int) {
		files, _ := os.ReadDir("/proc/self/fd")
		for _, f := range files {
			if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "pipe:") {
				n++
			}
		}
		return n
	}
	w := newWorld(t, []string{"pypi.org:7"}, nil, map[string][]string{"pypi.org": {public}})
	server(t, public+":7", func(c *net.TCPConn) { // without a pipe of its own
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			c.Write(b)
		}
	})
	to := w.captured(t, w.address(t, "pypi.org", 7))
	const connections = 50
	for range connections {
		c := dialTo(t, to)
		for range 2 {
			io.WriteString(c, "\x00")
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for pipes() >= connections && time.Now().Before(deadline) {
		runtime.GC() // package net keeps unused pipes until then
		time.Sleep(lull)
	}
	if n := pipes(); n >= connections {
		t.Errorf("%d connections hold %d ends of pipes", connections, n)
	}
}

func TestTheEndOfTheContextResets(t *testing.T) {
	w := newWorld(t, []string{"pypi.org:7"}, nil, map[string][]string{"pypi.org": {public}})
	server(t, public+":7", echo)
	for text, sent := range map[string]int64{"\x00": 1, "GET /": 0} { // one with a server, and one that is judged
		client, served := pair(t, w.address(t, "pypi.org", 7).String())
		ctx, cancel := context.WithCancel(t.Context())
		go Serve(ctx, served, w.Sandbox)
		io.WriteString(client, text)
		if _, err := io.ReadFull(client, make([]byte, sent)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * silentTime)
		cancel()
		wantReset(t, text, client)
		if e := w.event(t); e.Sent != sent || e.Received != sent {
			t.Errorf("%q: event %+v", text, e)
		}
	}
}
