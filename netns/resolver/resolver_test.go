package resolver

import (
	"net"
	"testing"
	"time"
)

// A connection that cannot be accepted, for example because the system has too many open files, does not end
// the resolver.
func TestTheResolverOutlivesFailedAccepts(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder{func() []string { return nil }}.serve(packets, l) }()
	for _, failUntil := range []func(time.Time) error{l.SetDeadline, packets.SetReadDeadline} {
		for _, deadline := range []time.Time{time.Now(), {}} {
			if err := failUntil(deadline); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * pause)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("the resolver has ended: %v", err)
	default:
	}
	l.Close()
	packets.Close()
	<-ended
}
