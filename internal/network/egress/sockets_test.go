package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/internal/network/egress/link"
	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/capture"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// newSandboxOf is a sandbox with a listener for each port, as without TPROXY.
func newSandboxOf(t *testing.T, ports []int) sandbox {
	t.Helper()
	namespace := netnstest.New(t)
	l, err := capture.Open(namespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	netnstest.Shell(t, namespace, "nft 'flush chain inet sandbox-runtime-capture prerouting; add rule inet sandbox-runtime-capture prerouting accept'")
	s := sandbox{namespace, &capture.Listeners{DNSPackets: l.DNSPackets, DNSStreams: l.DNSStreams}}
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	err = netns.Do(namespace, func() error {
		for _, port := range ports {
			for _, network := range []string{"tcp4", "tcp6"} {
				l, err := config.Listen(t.Context(), network, fmt.Sprintf(":%d", port))
				if err != nil {
					return err
				}
				defer l.Close()
				f, err := l.(*net.TCPListener).File() //nolint:forcetypeassert // of a TCP network
				if err != nil {
					return err
				}
				t.Cleanup(func() { f.Close() })
				s.sockets.Streams = append(s.sockets.Streams, f)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASandboxCanHaveAListenerForEachPort(t *testing.T) {
	if link.MaxSockets != 2*(2+capture.MaxPorts) {
		t.Errorf("a sandbox can have %d sockets, and the capture has %d ports", link.MaxSockets, capture.MaxPorts)
	}
	newOutside(t)
	e := newEgress(t)
	ports := []int{80}
	for len(ports) < capture.MaxPorts {
		ports = append(ports, 20000+len(ports))
	}
	first, second := newSandboxOf(t, ports), newSandboxOf(t, ports)
	for key, s := range map[string]sandbox{"first": first, "second": second} {
		if err := e.Admit(t.Context(), Box{Key: key, Allow: []string{"good.example:80"}}, s.sockets); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		for _, s := range []sandbox{first, second} {
			if err := s.fetch("good.example"); err != nil {
				t.Error(err)
			}
		}
	}
	check()
	// The worker serves the last socket, too, and refuses: the name has no such rule.
	a, err := first.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	last := uint16(ports[len(ports)-1])
	c, err := first.dial("tcp", netip.AddrPortFrom(a, last).String())
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("port %d: %v", last, err)
	}
	for _, id := range workers(t, e) {
		kill(t, id)
	}
	eventually(t, "the next worker has all sockets", func() bool { return errors.Join(first.fetch("good.example"), second.fetch("good.example")) == nil })
	more := first.sockets
	more.Streams = append(slices.Clone(more.Streams), more.Streams[0])
	if err := e.Admit(t.Context(), Box{Key: "third"}, more); err == nil {
		t.Errorf("%d sockets are admitted", link.MaxSockets+1)
	}
}

// The packet filter of the capture refuses such connections. Without the filter, the worker does.
func TestALoopbackAddressOfTheSandboxIsNeverOneOfTheHost(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandboxOf(t, []int{80})
	if err := e.Admit(t.Context(), Box{Key: "box", Allow: []string{"0.0.0.0/0", "::/0"}}, s.sockets); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"127.0.0.1:80", "[::1]:80"} {
		c, err := s.dial("tcp", to)
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v", to, err)
		}
	}
	wantEvents(t, e, "box", " denied", " denied")
}

// The caller can open the same ports again, and the sandbox keeps its names.
func TestASuspendedSandboxCanHaveTheSamePortsAgain(t *testing.T) {
	newOutside(t)
	e, s := newEgress(t), newSandbox(t)
	box := Box{Key: "box", Allow: []string{"good.example", "other.example"}}
	if err := e.Admit(t.Context(), box, s.sockets); err != nil {
		t.Fatal(err)
	}
	if err := s.fetch("other.example"); err != nil {
		t.Error(err)
	}
	address, err := s.lookUp("good.example")
	if err != nil {
		t.Fatal(err)
	}
	slow, _, err := s.get(address, "good.example", "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	for _, f := range slices.Concat(s.sockets.Streams, s.sockets.DNSPackets, s.sockets.DNSStreams) {
		f.Close()
	}
	for range 2 {
		if err := e.Suspend(t.Context(), "box"); err != nil {
			t.Fatal(err)
		}
		if err := readNow(t, slow); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, io.EOF) {
			t.Errorf("the connection goes on: %v", err)
		}
		for _, to := range []string{netip.AddrPortFrom(address, 80).String(), "8.8.8.8:53"} {
			if _, err := s.dial("tcp", to); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("the sockets are still open: %s: %v", to, err)
			}
		}
		for _, id := range workers(t, e) { // the next one has no sockets either
			kill(t, id)
		}
	}
	l, err := capture.Open(s.namespace, []spec.PortRange{{First: 80, Last: 80}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if err := e.Admit(t.Context(), box, l); err != nil {
		t.Fatal(err)
	}
	if again, err := s.lookUp("good.example"); err != nil || again != address {
		t.Errorf("%v, %v; the address was %v", again, err, address)
	}
	if err := s.fetch("good.example"); err != nil {
		t.Error(err)
	}
	eventually(t, "the requests of before count, too", func() bool {
		counts, err := e.Counts(t.Context(), "box")
		return err == nil && counts.Requests == 3
	})
}

// The sockets that all sandboxes have count, and not how many they could have.
func TestSandboxesHaveRoomAsFarAsDescriptorsGo(t *testing.T) {
	p := newHostileParent(t) // two boxes with one socket each
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	left := int(limit.Max) - link.FilesOfWorker - 2*(1+link.FilesPerConnection)
	for _, c := range []struct {
		of      *box
		sockets int
		isRoom  bool
	}{
		{nil, left - link.FilesPerConnection, true}, {nil, left - link.FilesPerConnection + 1, false},
		{p.keys["a"], left + 1, true}, {p.keys["a"], left + 2, false},
	} {
		if err := p.checkRoomLocked(c.of, c.sockets); (err == nil) != c.isRoom {
			t.Errorf("%d sockets of %d, the box is new: %v: %v", c.sockets, left, c.of == nil, err)
		}
	}
	p.boxes[99] = &box{files: make([]*os.File, left)}
	for _, key := range []string{"a", "c"} { // an earlier box, and a new one
		file, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.admitLocked(Box{Key: key}, []link.Role{link.Streams}, []*os.File{file}); err == nil || len(p.keys) != 2 {
			t.Errorf("%d boxes: %v", len(p.keys), err)
		}
		if err := file.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the socket of a refused box: %v", err)
		}
	}
}
