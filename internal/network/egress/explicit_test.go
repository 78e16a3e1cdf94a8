package egress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ask sends a request to the explicit proxy, and returns the status.
func (s sandbox) ask(request string) (net.Conn, *bufio.Reader, int, error) {
	return s.askAt(spec.ProxyServer, request)
}

func (s sandbox) askAt(address, request string) (net.Conn, *bufio.Reader, int, error) {
	c, err := s.dial("tcp", address)
	if err != nil {
		return nil, nil, 0, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, request)
	r := bufio.NewReader(c)
	answer, err := http.ReadResponse(r, nil)
	if err != nil {
		c.Close()
		return nil, nil, 0, err
	}
	return c, r, answer.StatusCode, nil
}

// Requests to the explicit proxy have the same rules and counts as captured ones.
func TestTheExplicitProxyHasTheSameRulesAndCounts(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example", otherAddress + ":80"}, Requests: 4}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	get := func(host string) string {
		return fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host, host)
	}
	connect := func(to string) string { return fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to) }
	for _, x := range []struct {
		request string
		status  int
	}{
		{get("good.example"), 200}, {get("bad.example"), 403}, {connect("bad.example:80"), 403}, {get(otherAddress), 200},
		{connect(otherAddress + ":80"), 200}, {connect("good.example:80"), 200}, {get("good.example"), 403},
		{get(otherAddress), 403}, {connect("good.example:80"), 403},
	} {
		c, _, status, err := s.ask(x.request)
		if err != nil || status != x.status {
			t.Fatalf("%q: %d, %v; want %d", x.request, status, err, x.status)
		}
		c.Close()
	}
	eventually(t, "the counts", func() bool {
		counts, err := e.Counts(t.Context(), "box")
		return err == nil && counts.Requests == 4 && counts.Refused == 5 && counts.Received > 0
	})
	// The requests in a tunnel are judged, and the first one is counted with the tunnel. Requests to an address
	// are counted, too.
	for first, next := range map[string]string{
		connect("good.example:80"): "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n", get(otherAddress): get(otherAddress),
	} {
		box.Requests += 2
		if err := e.Change(t.Context(), box); err != nil {
			t.Fatal(err)
		}
		c, r, status, err := s.ask(first)
		if err != nil || status != 200 {
			t.Fatal(status, err)
		}
		defer c.Close()
		statuses := []int{200, 200, 403}
		if first == next {
			_, _ = r.ReadString('\n') // the body of the first answer
			statuses = statuses[1:]
		}
		for i, want := range statuses {
			fmt.Fprint(c, next)
			answer, err := http.ReadResponse(r, nil)
			if err != nil || answer.StatusCode != want {
				t.Fatalf("%q, answer %d: %+v, %v; want %d", next, i, answer, err, want)
			}
			_, _ = io.Copy(io.Discard, answer.Body)
		}
	}
	if got := o.arrivals(); slices.ContainsFunc(got, func(a string) bool { return strings.HasPrefix(a, "bad") }) {
		t.Errorf("outside: %q", got)
	}
}

// The connection with a server ends with that of the client, also between two requests.
func TestTheServersConnectionEndsWithTheClients(t *testing.T) {
	o, e, s := newOutside(t), newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	c, r, status, err := s.ask("GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n")
	if err != nil || status != 200 {
		t.Fatalf("%d, %v", status, err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != "good.example\n" || o.open.Load() != 1 {
		t.Fatalf("%q, %v; %d connections", line, err, o.open.Load())
	}
	c.Close()
	eventually(t, "the connection with the server has ended", func() bool { return o.open.Load() == 0 })
}

// New rules end the tunnels that they do not allow.
func TestNewRulesEndTunnels(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example", "other.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	tunnels := map[string]net.Conn{}
	for _, name := range box.Allow {
		c, _, status, err := s.ask("CONNECT " + name + ":80 HTTP/1.1\r\n\r\n")
		if err != nil || status != 200 {
			t.Fatal(status, err)
		}
		defer c.Close()
		tunnels[name] = c
	}
	box.Allow = []string{"good.example"}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	for name, c := range tunnels {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", name)
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); (err == nil) != (name == "good.example") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The proxy is there without TPROXY, too.
func TestTheExplicitProxyHasAListener(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandboxOf(t, []int{80, 3128})
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"good.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{spec.ProxyServer, "[fd53::1]:3128"} {
		for name, want := range map[string]int{"good.example": 200, "bad.example": 403} {
			c, _, status, err := s.askAt(address, fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", name, name))
			if err != nil || status != want {
				t.Fatalf("%s at %s: %d, %v; want %d", name, address, status, err, want)
			}
			c.Close()
		}
	}
}
