package integration

import (
	"net"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
)

// attemptsScript tries each way out. It prints the name of each one that worked, or that failed late.
const attemptsScript = `
import socket, sys, time
server, server6, host, name, *skipped = sys.argv[1:]
def query(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\3web\4test\0\0\1\0\1", (address, 53))
    s.recv(512)
def send(family, kind, protocol, address, data=b"hello"):
    socket.socket(family, kind, protocol).sendto(data, address)
def unix(kind):
    s = socket.socket(socket.AF_UNIX, kind)
    s.settimeout(5)
    s.connect("\0" + name)
four, six, stream, datagram, raw = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
attempts = {
    "tcp": lambda: socket.create_connection((server, 80), 5),
    "tcp 6": lambda: socket.create_connection((server6, 80), 5),
    "tcp to the host": lambda: socket.create_connection((host, 80), 5),
    "tcp to the host's loopback": lambda: socket.create_connection(("127.0.0.1", 80), 5),
    "udp": lambda: send(four, datagram, 0, (server, 80)),
    "udp 6": lambda: send(six, datagram, 0, (server6, 80)),
    "multicast": lambda: send(four, datagram, 0, ("224.0.0.251", 5353)),
    "names": lambda: socket.getaddrinfo("web.test", 80),
    "a query": lambda: query("198.18.0.1"),
    "a query outside": lambda: query(server),
    "icmp": lambda: send(four, datagram, socket.IPPROTO_ICMP, (server, 0), b"\x08\0\0\0\0\1\0\1"),
    "icmp 6": lambda: send(six, datagram, socket.IPPROTO_ICMPV6, (server6, 0), b"\x80\0\0\0\0\1\0\1"),
    "raw icmp": lambda: send(four, raw, socket.IPPROTO_ICMP, (server, 0), b"\x08\0\0\0\0\1\0\1"),
    "an abstract socket": lambda: unix(stream),
}
for what, attempt in attempts.items():
    if what in skipped:
        continue
    begin = time.monotonic()
    try:
        attempt()
        print(what, "worked")
    except OSError:
        pass
    if time.monotonic() - begin > 2:
        print(what, "failed late")
print(len(attempts) - len(skipped), "attempts")
`

// Without a network each way out fails at once.
func TestNoneRefusesEachWayOutAtOnce(t *testing.T) {
	need(t, world())
	w := newNetworkWorld(t)
	const name = "canary-of-none"
	w.serve(t, w.outside, ":80")
	for _, address := range []string{worldHost + ":80", "127.0.0.1:80"} {
		w.serve(t, w.host, address)
	}
	err := netns.Do(w.host, func() error {
		l, err := net.Listen("unix", "@"+name)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	attempt := []string{"python3", "-c", attemptsScript, worldServer, worldServer6, worldHost, name}
	local := append(append([]string{"do", "--local", "--"}, attempt...), "names", "a query", "a query outside", "icmp", "icmp 6")
	if got := w.on(t, local...); strings.Count(got.stdout, " worked\n") != 9 {
		t.Errorf("on the host itself: %+v", got)
	}
	want := "14 attempts\n"
	for _, user := range []string{"0", "1000"} {
		if got := w.on(t, append([]string{"do", "--user", user, "--network", "none", "--"}, attempt...)...); got.stdout != want {
			t.Errorf("do --user %s: %+v", user, got)
		}
	}
	if got := w.on(t, "up", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := w.on(t, append([]string{"exec", "box"}, attempt...)...); got.stdout != want {
		t.Errorf("exec: %+v", got)
	}
	if got := w.on(t, "down", "box"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}
