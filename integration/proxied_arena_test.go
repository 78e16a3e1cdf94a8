package integration

import (
	"bytes"
	endian "encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-runtime/sandbox-runtime/netns"
	"github.com/sandbox-runtime/sandbox-runtime/netns/netnstest"
)

// Names of the arena. Rules allow goodName and names below it. evilName is the attacker's.
const goodName, evilName = "good.test", "evil.test"

// An arena is a host and a hostile outside, which records each packet and each connection.
type arena struct {
	*networkWorld
	names   *liar
	packets *packetRecord
	servers *streamRecord
	onHost  *streamRecord
	// prelude are more functions for attempts.
	prelude string
}

// privateServers are addresses outside that are not public.
var privateServers = []string{"10.0.0.9", "100.64.0.9", "169.254.169.254", "192.168.0.9", "172.16.0.9"}

func newArena(t *testing.T) *arena {
	t.Helper()
	a := &arena{networkWorld: newNetworkWorld(t)}
	for _, address := range privateServers {
		netnstest.Shell(t, a.outside, "ip address add "+address+"/32 dev lan")
	}
	a.packets = watchPackets(t, a.outside, "lan")
	a.names = serveLies(t, a.networkWorld)
	a.names.set(goodName, lie{first: []string{worldServer, worldServer6}})
	a.names.set(evilName, lie{first: []string{worldServer, worldServer6}})
	a.servers, a.onHost = &streamRecord{}, &streamRecord{}
	a.servers.serve(t, a.outside, ":80", nil)
	a.servers.serve(t, a.outside, ":443", newCertificate(t))
	for _, address := range []string{worldHost, "127.0.0.1", "[" + worldHost6 + "]"} {
		a.onHost.serve(t, a.host, address+":80", nil)
	}
	t.Cleanup(func() { a.endEgress(t) })
	return a
}

// endEgress waits until the processes of the proxied network have ended.
func (a *arena) endEgress(t *testing.T) {
	t.Helper()
	dir := a.root + "/@egress"
	eventually(t, "the processes of the proxied network end", func() bool { return !exists(dir + "/control") })
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// An attempt is one try of a program inside. The code is an expression of Python, after attemptPrelude. It
// raises OSError, or has an answer of the proxy itself, if it was refused.
type attempt struct {
	name string
	code string
	// works says that the attempt succeeds: such ones show that the arena's eyes are open.
	works bool
	// late permits a failure that takes longer than five seconds.
	late bool
}

// mark is the text that the attempt sends. It never arrives outside, unless the attempt works.
func (a attempt) mark() string { return "<" + strings.ReplaceAll(a.name, " ", "-") + ">" }

// An attemptEnd is the end of an attempt.
type attemptEnd struct {
	Name   string
	Works  bool
	Answer string
	Took   float64
}

const attemptPrelude = `
import json, os, socket, ssl, struct, sys, time
good, evil, server, server6, host = "good.test", "evil.test", "9.9.9.9", "2600:9::9", "9.9.9.1"
four, six, stream, datagram, raw = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
mark = ""
def read(s):
    got = b""
    while True:
        part = s.recv(65536)
        got += part
        if not part or b"end of answer" in got:
            return got
def connect(to, port=80, timeout=20):
    return socket.create_connection((to, port), timeout)
def tcp(to, port, *parts, pause=0):
    s = connect(to, port)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for p in parts:
        s.sendall(p if isinstance(p, bytes) else p.encode("latin-1"))
        time.sleep(pause)
    return read(s)
def get(name, path="/", port=80):
    return tcp(name, port, "GET %s%s HTTP/1.1\r\nHost: %s\r\nX: %s\r\nConnection: close\r\n\r\n" % ("" if path[0] == "/" else "/", path, name, mark))
def tls(to, name, port=443, first=b""):
    c = ssl.create_default_context()
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    s = connect(to, port)
    if first:
        s.sendall(first)
    with c.wrap_socket(s, server_hostname=name) as s:
        s.sendall(("GET / HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n" % mark).encode())
        return read(s)
def hello(name):
    c = ssl.create_default_context()
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    s = c.wrap_bio(inside, outside, server_hostname=name)
    try:
        s.do_handshake()
    except ssl.SSLWantReadError:
        return outside.read()
def send(family, kind, protocol, to, data=None):
    s = socket.socket(family, kind, protocol)
    s.settimeout(1)
    s.connect(to) if kind == datagram and protocol == 0 else None
    data = data or mark.encode()
    s.sendto(data, to) if kind != datagram or protocol else s.send(data)
    return s.recv(100)
def question(name, kind=1, recursion=True):
    labels = b"".join(bytes([len(l)]) + (l if isinstance(l, bytes) else l.encode("latin-1")) for l in (name.split(".") if isinstance(name, str) else name) if l)
    return struct.pack(">HHHHHH", 7, 256, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
def code(answer):
    if answer[3] & 15 or not answer[7]:
        raise OSError("no record: code %d" % (answer[3] & 15))
    return answer
def ask(name, kind=1, to="198.18.0.1"):
    s = socket.socket(six if ":" in to else four, datagram)
    s.settimeout(5)
    s.connect((to, 53))
    s.send(question(name, kind))
    return code(s.recv(4096))
def askTCP(name, kind=1, to="198.18.0.1", port=53):
    s = connect(to, port)
    q = question(name, kind)
    s.sendall(struct.pack(">H", len(q)) + q)
    return code(s.recv(4096)[2:])
def case(name, attempt):
    global mark
    mark, begin = "<" + name.replace(" ", "-") + ">", time.monotonic()
    works, answer = False, ""
    try:
        answer = attempt()
        if not answer:
            answer = "nothing"
        elif isinstance(answer, bytes):
            works = not any(answer.startswith(b"HTTP/1.1 " + c) for c in (b"400", b"403", b"502"))
            answer = answer[:300].decode("latin-1")
        else:
            works, answer = True, str(answer)
    except (OSError, UnicodeError) as e:
        answer = repr(e)
    print(json.dumps({"name": name, "works": works, "answer": answer, "took": time.monotonic() - begin}), flush=True)
`

// slowest is how long a refusal may take, in seconds. A resolver inside asks again after 5 seconds, if an answer got
// lost. The proxy's own bounds are 10 seconds or more.
const slowest = 9

// try runs the attempts in one sandbox for each kind of user, and judges them by what arrives outside.
func (a *arena) try(t *testing.T, flags []string, attempts []attempt) {
	t.Helper()
	for _, user := range []string{"1000", "0"} {
		a.tryAs(t, user, flags, attempts)
	}
}

func (a *arena) tryAs(t *testing.T, user string, flags []string, attempts []attempt) {
	t.Helper()
	a.forget()
	script := attemptPrelude + a.prelude
	for _, x := range attempts {
		script += fmt.Sprintf("case(%q, lambda: %s)\n", x.name, x.code)
	}
	const last = "the end"
	script += fmt.Sprintf("case(%q, lambda: get(good))\n", last)
	args := append([]string{"do", "--network", "proxied", "--user", user, "--pids", "2048"}, flags...)
	got := a.on(t, append(args, "--", "python3", "-c", script)...)
	all := attemptEnds(t, got)
	if !all[last].Works {
		t.Fatalf("user %s: the last attempt does not work: %+v", user, got)
	}
	eventually(t, "the last attempt arrives", func() bool { return a.packets.saw(attempt{name: last}.mark()) })
	for _, x := range attempts {
		o, ok := all[x.name]
		if !ok || o.Works != x.works {
			t.Errorf("user %s: %s: works %v, want %v: %+v", user, x.name, o.Works, x.works, o)
		}
		if !x.works && !x.late && o.Took > slowest {
			t.Errorf("user %s: %s: failed late: %+v", user, x.name, o)
		}
		if below := strings.Trim(x.mark(), "<>") + "." + evilName; !x.works && (a.sees(x.mark()) || a.sees(below)) {
			t.Errorf("user %s: %s: arrived outside", user, x.name)
		}
	}
	if text := a.onHost.text(); text != "" {
		t.Errorf("user %s: arrived at the host: %q", user, text)
	}
}

// attemptEnds reads the ends of attempts.
func attemptEnds(t *testing.T, got result) map[string]attemptEnd {
	t.Helper()
	all := map[string]attemptEnd{}
	for line := range strings.Lines(got.stdout) {
		var e attemptEnd
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %+v", err, got)
		}
		all[e.Name] = e
	}
	return all
}

// sees says whether a text has arrived outside.
func (a *arena) sees(text string) bool {
	return a.packets.saw(text) || a.servers.saw(text) || a.names.saw(text)
}

func (a *arena) forget() {
	a.packets.forget()
	a.servers.forget()
	a.onHost.forget()
	a.names.forget()
}

// onlyArrive holds that packets have come to these destinations only, as in "9.9.9.9 tcp 80".
func (a *arena) onlyArrive(t *testing.T, permitted ...string) {
	t.Helper()
	for _, d := range a.packets.destinations() {
		if !slices.Contains(permitted, d) {
			t.Errorf("a packet arrived outside: %s", d)
		}
	}
}

// usual are the destinations of the arena's proxy.
func usual() []string {
	var all []string
	for _, port := range []string{"80", "443"} {
		all = append(all, worldServer+" tcp "+port, worldServer6+" tcp "+port)
	}
	return append(all, worldServer+" udp 53", worldServer+" tcp 53")
}

// A packetRecord keeps the packets that arrive at a device.
type packetRecord struct {
	mu  sync.Mutex
	all [][]byte
}

// watchPackets keeps the IP packets that arrive at the device.
func watchPackets(t *testing.T, namespace *os.File, device string) *packetRecord {
	t.Helper()
	r := &packetRecord{}
	everything := endian.NativeEndian.Uint16(endian.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	err := netns.Do(namespace, func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Index}); err != nil {
			return err
		}
		r.listen(t, fd)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *packetRecord) listen(t *testing.T, fd int) {
	t.Helper()
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fd)
		b := make([]byte, 64<<10)
		for {
			n, from, err := unix.Recvfrom(fd, b, 0)
			select {
			case <-stop:
				return
			default:
			}
			link, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || link.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			r.mu.Lock()
			r.all = append(r.all, bytes.Clone(b[:n]))
			r.mu.Unlock()
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

func (r *packetRecord) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = nil
}

func (r *packetRecord) saw(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.all, func(p []byte) bool { return bytes.Contains(bytes.ToLower(p), []byte(strings.ToLower(text))) })
}

// destinations are those of the packets, each once. Messages of neighbour discovery and of multicast
// listeners are the host's own.
func (r *packetRecord) destinations() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, p := range r.all {
		if d := destination(p); d != "" && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	slices.Sort(all)
	return all
}

func destination(p []byte) string {
	if len(p) < 20 || p[0]>>4 != 4 && p[0]>>4 != 6 {
		return "" // ARP
	}
	to, protocol, rest := netip.AddrFrom4([4]byte(p[16:20])), p[9], p[int(p[0]&15)*4:]
	if p[0]>>4 == 6 {
		to, protocol, rest = netip.AddrFrom16([16]byte(p[24:40])), p[6], p[40:]
	}
	name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
	switch {
	case name != "" && len(rest) >= 4:
		return fmt.Sprintf("%s %s %d", to, name, endian.BigEndian.Uint16(rest[2:]))
	case protocol == 0 && to.IsMulticast(), protocol == unix.IPPROTO_ICMPV6 && len(rest) > 0 && rest[0] >= 133:
		return ""
	}
	return fmt.Sprintf("%s protocol %d", to, protocol)
}
