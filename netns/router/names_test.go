package router

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// lookup asks for the addresses of a name as a program in the namespace does.
func lookup(namespace *os.File, network, name string) ([]string, error) {
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (c net.Conn, err error) {
		err = netns.Do(namespace, func() error {
			c, err = net.DialTimeout(network, spec.NameServer+":53", patience)
			return err
		})
		return c, err
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 6*patience)
	defer cancel()
	addresses, err := r.LookupNetIP(ctx, "ip4", name+".")
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.Unmap().String())
	}
	return texts, err
}

// nameServer is a name server in the internet that knows some.example.
func nameServer(t *testing.T, internet *os.File) {
	t.Helper()
	listener := netnstest.Listen(t, internet, internetIPv4+":53")
	var packets net.PacketConn
	err := netns.Do(internet, func() (err error) {
		packets, err = net.ListenPacket("udp", internetIPv4+":53")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close() })
	go func() {
		buffer := make([]byte, 512)
		for {
			n, peer, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := answered(buffer[:n]); answer != nil {
				_, _ = packets.WriteTo(answer, peer)
			}
		}
	}()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			buffer := make([]byte, 514)
			n, _ := c.Read(buffer)
			if answer := answered(buffer[min(n, 2):n]); answer != nil {
				_, _ = c.Write(append([]byte{byte(len(answer) >> 8), byte(len(answer))}, answer...))
			}
			c.Close()
		}
	}()
}

// silentName is a name without an answer.
const silentName = "silent.example."

// answered is the answer to a query.
func answered(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || m.Questions[0].Name.String() == silentName {
		return nil
	}
	m.Response, m.Additionals = true, nil
	if q := m.Questions[0]; q.Name.String() == "some.example." {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
			Body:   &dnsmessage.AResource{A: [4]byte{9, 8, 7, 6}},
		}}
	} else {
		m.RCode = dnsmessage.RCodeNameError
	}
	answer, _ := m.Pack()
	return answer
}
