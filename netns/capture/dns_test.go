package capture

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// answerPackets answers each query for an address with one, from the address that was asked, until the
// test ends. Any other packet comes back.
func answerPackets(t *testing.T, f *os.File) {
	t.Helper()
	p, err := net.FilePacketConn(f)
	if err != nil {
		t.Fatal(err)
	}
	c := p.(*net.UDPConn) //nolint:forcetypeassert // of a UDP socket
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		packet, asked := make([]byte, 512), make([]byte, 128)
		for {
			n, length, _, peer, err := c.ReadMsgUDPAddrPort(packet, asked)
			if err != nil {
				return
			}
			answer := packet[:n]
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) == nil && len(m.Questions) == 1 {
				answer = address(t, m)
			}
			if _, _, err := c.WriteMsgUDPAddrPort(answer, asked[:length], peer); err != nil {
				t.Errorf("answer to %s: %v", peer, err)
			}
		}
	}()
}

func address(t *testing.T, query dnsmessage.Message) []byte {
	q := query.Questions[0]
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: query.ID, Response: true}, Questions: query.Questions}
	var body dnsmessage.ResourceBody
	switch q.Type {
	case dnsmessage.TypeA:
		body = &dnsmessage.AResource{A: [4]byte{198, 18, 1, 1}}
	case dnsmessage.TypeAAAA:
		body = &dnsmessage.AAAAResource{AAAA: [16]byte{0xfd, 0x53, 7: 1, 15: 1}}
	}
	if body != nil {
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, Type: q.Type}, Body: body}}
	}
	text, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return text
}

func TestQueriesToEachAddressReachTheDNSSockets(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace, l := newBox(t, m, webPorts)
		serve(t, l)
		for _, packets := range l.DNSPackets {
			answerPackets(t, packets)
		}
		for _, server := range []string{
			"8.8.8.8:53", "127.0.0.53:53", "127.0.0.1:53", "198.18.0.2:53", "198.18.0.1:53", "10.0.0.1:53",
			"[::1]:53", "[2001:4860:4860::8888]:53", "[fd53::2]:53",
		} {
			wantAnswer(t, namespace, server, server)
			c, err := dial(namespace, "udp", server) // a connected socket gets messages from the server only
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			answer := make([]byte, 9)
			if _, err := c.Write([]byte("?")); err != nil {
				t.Errorf("UDP %s: %v", server, err)
			} else if n, err := c.Read(answer); err != nil || string(answer[:n]) != "?" {
				t.Errorf("UDP %s: %q, %v", server, answer[:n], err)
			}
		}
	})
}

// glibc asks for addresses of a family only if the host has one that is not 127.0.0.1 or ::1.
func TestNamesResolveForProgramsWithAddressesOnly(t *testing.T) {
	withEach(t, func(t *testing.T, m method) {
		namespace, l := newBox(t, m, webPorts)
		for _, packets := range l.DNSPackets {
			answerPackets(t, packets)
		}
		got := netnstest.Shell(t, namespace, "getent -s hosts:dns ahosts name.example")
		if !strings.Contains(got, "198.18.1.1 ") || !strings.Contains(got, "fd53:0:0:1::1 ") {
			t.Errorf("getent: %s", got)
		}
	})
}
