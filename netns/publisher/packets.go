package publisher

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxPeers bounds the UDP clients of a sandbox at one time.
	maxPeers = 256
	// idleTime is how long a UDP client keeps its socket without packets.
	idleTime = time.Minute
	// maxPacket is the longest packet of UDP, in bytes.
	maxPacket = 65535
)

// A switchboard has a socket in the sandbox for each client of a UDP port.
type switchboard struct {
	host   *net.UDPConn
	server *net.UDPAddr
	count  *counter
	// idle is idleTime; tests have less.
	idle time.Duration

	// mu guards the field below.
	mu    sync.Mutex
	peers map[netip.AddrPort]*net.UDPConn
}

func newSwitchboard(host *net.UDPConn, port uint16, b *counter) *switchboard {
	return &switchboard{
		host: host, server: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}, count: b, idle: idleTime,
		peers: map[netip.AddrPort]*net.UDPConn{},
	}
}

// serve passes on the packets of clients. Packets of clients beyond the bound are lost.
func (s *switchboard) serve() {
	packet := make([]byte, maxPacket)
	for {
		n, client, err := s.host.ReadFromUDPAddrPort(packet)
		if err != nil {
			time.Sleep(pause)
			continue
		}
		if c := s.inside(client); c != nil {
			_, _ = c.Write(packet[:n]) // UDP: packets can get lost
		}
	}
}

// inside returns the client's socket in the sandbox, or nil.
func (s *switchboard) inside(client netip.AddrPort) *net.UDPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.peers[client]; c != nil {
		_ = c.SetReadDeadline(time.Now().Add(s.idle)) // a closed socket needs none
		return c
	}
	if !s.count.acquire(maxPeers) {
		return nil
	}
	c, err := net.DialUDP("udp", nil, s.server)
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(s.idle))
	}
	if err != nil {
		s.count.release()
		return nil
	}
	s.peers[client] = c
	go s.answer(c, client)
	return c
}

// answer passes on the server's packets, until there are none for a while or nothing listens.
func (s *switchboard) answer(c *net.UDPConn, client netip.AddrPort) {
	defer s.forget(c, client)
	packet := make([]byte, maxPacket)
	for {
		n, err := c.Read(packet)
		if err != nil || c.SetReadDeadline(time.Now().Add(s.idle)) != nil {
			return
		}
		_, _ = s.host.WriteToUDPAddrPort(packet[:n], client) // UDP: packets can get lost
	}
}

func (s *switchboard) forget(c *net.UDPConn, client netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, client)
	s.count.release()
	_ = c.Close() // nothing waits for it
}
