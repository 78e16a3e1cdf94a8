package egress

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/nameserver"
	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// Each port of a query takes an entry of the host's table of connections. So a sandbox that connects to name after name
// must not make the worker open a port for each query.
func TestLookupsOfManyNamesShareFewPorts(t *testing.T) {
	testhost.Concurrent(t)
	newOutside(t)
	server, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	ports, queries := map[string]bool{}, 0
	done := make(chan struct{})
	defer func() { server.Close(); <-done }()
	go func() {
		defer close(done)
		buffer := make([]byte, 1500)
		for {
			n, peer, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			mu.Lock()
			ports[peer.String()], queries = true, queries+1
			mu.Unlock()
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil {
				continue
			}
			m.Response, m.RCode, m.Additionals = true, dnsmessage.RCodeNameError, nil
			if packed, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(packed, peer)
			}
		}
	}()
	e, s := newEgress(t), newSandbox(t)
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"*.names.example"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	const names = 150
	start := time.Now()
	for i := range names {
		if err := s.fetch(fmt.Sprintf("n%d.names.example", i)); err == nil {
			t.Fatal("a name without an address is reached")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	minutes := 1 + int(time.Since(start).Minutes())
	if bound := nameserver.Ports * (1 + minutes); queries < names || len(ports) > bound {
		t.Errorf("%d queries left by %d ports, want %d at most", queries, len(ports), bound)
	}
}
