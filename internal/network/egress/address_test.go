package egress

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// slowly makes a request that never ends by itself, in the background.
func (s sandbox) slowly(t *testing.T, name string) chan net.Conn {
	t.Helper()
	a, err := s.lookUp(name)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan net.Conn, 1)
	go func() {
		c, _, err := s.get(a, name, "/slow")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got <- c
	}()
	return got
}

// awaitConn waits for the connection of slowly.
func awaitConn(t *testing.T, got chan net.Conn) net.Conn {
	t.Helper()
	c := <-got
	if c == nil {
		t.FailNow()
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// New rules about addresses count for open connections to names, too.
func TestADenyRuleForAnAddressEndsConnectionsToNamesThere(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example", "other.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	good, other := awaitConn(t, s.slowly(t, "good.example")), awaitConn(t, s.slowly(t, "other.example"))
	box.Deny = []string{goodAddress}
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := readNow(t, good); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection to a denied address: %v", err)
	}
	if err := readNow(t, other); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the connection to another address: %v", err)
	}
}

// A rule for the one address opens an address of the host. A range in its place ends the connection.
func TestARangeEndsConnectionsToTheHost(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	const host = "10.77.0.1"
	l, err := net.Listen("tcp", host+":80")
	if err != nil {
		t.Fatal(err)
	}
	server, done := &http.Server{Handler: &outerNetwork{arrived: map[string]int{}}}, make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { server.Close(); <-done })
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{host, "good.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	c, err := s.dial("tcp", host+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "the connection", func() bool {
		counts, err := e.Counts(t.Context(), "box")
		return err == nil && counts.Requests == 1
	})
	box.Allow[1] = "also.example"
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := readNow(t, c); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("with the rule for the address: %v", err)
	}
	box.Allow[0] = "10.77.0.0/24"
	if err := e.Change(t.Context(), box); err != nil {
		t.Fatal(err)
	}
	if err := readNow(t, c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("with a rule for the range: %v", err)
	}
}

// The host gets all connections to a network on lo, and to other local routes. A rule for a range does not open
// them.
func TestARangeOpensNoLocalRouteOfTheHost(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	shell(t, "ip address add 10.88.0.1/24 dev lo && ip route add local 10.89.0.0/24 dev lo")
	t.Cleanup(func() { shell(t, "ip address delete 10.88.0.1/24 dev lo; ip route delete local 10.89.0.0/24 dev lo") })
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"10.88.0.0/16", "10.89.0.0/16", goodAddress + "/32"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan string, 2)
	for _, address := range []string{"10.88.0.7:80", "10.89.0.7:80"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			if c, err := l.Accept(); err == nil {
				arrived <- address
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close(); <-accepted })
		c, err := s.dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v", address, err)
		}
		c.Close()
	}
	if len(arrived) > 0 {
		t.Errorf("the host has a connection to %s", <-arrived)
	}
	if c, _, err := s.get(netip.MustParseAddr(goodAddress), "good.example", "/"); err != nil {
		t.Errorf("an address of another host: %v", err)
	} else {
		c.Close()
	}
}
