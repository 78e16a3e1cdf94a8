package integration

import (
	"fmt"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// packetPrelude has helpers of attempts with packets and the sandbox's own network.
const packetPrelude = `
import ctypes, errno, fcntl, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
def called(r):
    if r < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "the call works"
def sh(line):
    p = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=5, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    if p.returncode:
        raise OSError(p.stderr)
    return line + ": " + p.stdout
def option(level, name, value, kind=stream):
    s = socket.socket(four, kind)
    s.setsockopt(level, name, value)
    return s
def bound(address, port, kind=stream, *options):
    s = socket.socket(six if ":" in address else four, kind)
    for o in options:
        s.setsockopt(*o)
    s.bind((address, port))
    if kind == stream:
        s.listen(1000)
    return s
def beside(*servers):
    # What the server outside says beside servers of the sandbox's own.
    got = get(good)
    for s in servers:
        s.close()
    return got
def from_source(address, *options):
    s = socket.socket(four, stream)
    for o in options:
        s.setsockopt(*o)
    s.bind((address, 0))
    s.settimeout(4)
    s.connect((server, 80))
    s.sendall(("GET /%s HTTP/1.1\r\nHost: good.test\r\n\r\n" % mark).encode())
    return read(s)
def synthetic(name=good):
    return socket.gethostbyname(name)
def ip_header(to, protocol, body):
    return struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 7, 0, 64, protocol, 0, socket.inet_aton("9.9.9.1"), socket.inet_aton(to)) + body
reuse, share, freebind, transparent = (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1), (socket.SOL_IP, 15, 1), (socket.SOL_IP, 19, 1)
def stopped():
    for signal in (19, 9, 15, 6):
        try:
            os.kill(1, signal)
        except OSError:
            pass
    time.sleep(0.2)
    return get(good)
def race(change):
    # Lookups and connections while another thread changes what it can.
    end = time.monotonic() + 1
    def again():
        while time.monotonic() < end:
            try:
                change()
            except OSError:
                pass
    t = threading.Thread(target=again)
    t.start()
    while time.monotonic() < end:
        got = get(good)
    t.join()
    return got
`

// No packet of a sandbox leaves but through the proxy, also with its own routes, addresses and sockets.
func TestAttackByPackets(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	a.prelude = packetPrelude
	attempts := []attempt{
		{name: "tcp to an address", code: `get(server)`},
		{name: "tcp to an ipv6 address", code: `get(server6)`},
		{name: "tcp to another port", code: `get(good, port=8080)`},
		{name: "tcp to another port of the server", code: `get(server, port=22)`},
		{name: "tcp to the host", code: `get(host)`},
		{name: "tcp to the loopback device", code: `get("127.0.0.1")`},
		{name: "the address of the resolver", code: `get("198.18.0.1")`},
		{name: "the address of the resolver with tls", code: `tls("198.18.0.1", good)`},
		{name: "the ipv6 address of the resolver", code: `get("fd53::1")`},
		{name: "the sandbox's own address", code: `get("198.18.0.2")`},
		{name: "a synthetic address without a name", code: `get("198.18.39.15")`},
		{name: "the last synthetic address", code: `get("198.19.255.255")`},
		{name: "an ipv6 synthetic address without a name", code: `get("fd53:0:0:1::270f")`},
		{name: "another ipv6 address of the range", code: `get("fd53:0:0:2::100")`},
		{name: "a mapped synthetic address", code: `get("::ffff:198.18.39.15")`},
		{name: "the mapped server", code: `get("::ffff:9.9.9.9")`},
		{name: "the multipath protocol", code: `(lambda s: (s.settimeout(4), s.connect((server, 80)), s.sendall(mark.encode()), read(s))[3])(socket.socket(four, stream, 262))`},
		{name: "quic", code: `send(four, datagram, 0, (synthetic(), 443))`},
		{name: "quic to the server", code: `send(four, datagram, 0, (server, 443))`},
		{name: "quic over ipv6", code: `send(six, datagram, 0, (server6, 443))`},
		{name: "udp", code: `send(four, datagram, 0, (server, 80))`},
		{name: "udp to broadcast", code: `send(four, datagram, 0, ("255.255.255.255", 9))`},
		{name: "udp lite", code: `send(four, datagram, 136, (server, 80))`},
		{name: "sctp", code: `socket.socket(four, stream, 132).connect((server, 80))`},
		{name: "dccp", code: `socket.socket(four, 6, 33).connect((server, 80))`},
		{name: "icmp", code: `send(four, datagram, socket.IPPROTO_ICMP, (server, 0), b"\x08\0\0\0\0\1\0\1" + mark.encode())`},
		{name: "icmp to the name", code: `send(four, datagram, socket.IPPROTO_ICMP, (synthetic(), 0), b"\x08\0\0\0\0\1\0\1" + mark.encode())`},
		{name: "icmp 6", code: `send(six, datagram, socket.IPPROTO_ICMPV6, (server6, 0), b"\x80\0\0\0\0\1\0\1" + mark.encode())`},
		{name: "ping", code: `sh("ping -c 1 -W 1 9.9.9.9")`},
		{name: "raw icmp", code: `send(four, raw, socket.IPPROTO_ICMP, (server, 0), b"\x08\0\0\0\0\1\0\1" + mark.encode())`},
		{name: "raw ip", code: `socket.socket(four, raw, 255).sendto(ip_header(server, 17, mark.encode()), (server, 0))`},
		{name: "raw tcp", code: `socket.socket(four, raw, 6).sendto(mark.encode(), (server, 0))`},
		{name: "raw ip 6", code: `socket.socket(six, raw, 255).sendto(mark.encode(), (server6, 0))`},
		{name: "a packet socket", code: `(lambda s: (s.bind(("lo", 0)), s.send(b"\0" * 12 + b"\x08\0" + ip_header(server, 17, mark.encode()))))(socket.socket(17, raw, 0x300))`},
		{name: "a packet socket of datagrams", code: `socket.socket(17, datagram, 0x8).sendto(ip_header(server, 17, mark.encode()), ("lo", 0x800))`},
		{name: "a socket of xdp", code: `socket.socket(44, raw, 0)`},
		{name: "vsock", code: `socket.socket(40, stream).connect((2, 80))`},
		{name: "a mark", code: `option(socket.SOL_SOCKET, 36, 0x5353)`},
		{name: "a transparent socket", code: `option(socket.SOL_IP, 19, 1)`},
		{name: "a netfilter queue", code: `(lambda s: (s.bind((0, 0)), s.send(b"\x14\0\0\0\3\3\5\0\1\0\0\0\0\0\0\0\0\0\0\0"), s.recv(100)[16:20] == b"\0\0\0\0" and "taken")[2])(socket.socket(16, raw, 12))`},
		{name: "source routing", code: `(lambda s: (s.settimeout(4), s.connect((server, 80)))[1])(option(socket.SOL_IP, 4, b"\x83\7\4\x09\x09\x09\x09\0"))`},
		{name: "a foreign source", code: `from_source("9.9.9.1", freebind)`},
		{name: "a foreign source without an option", code: `from_source("9.9.9.1")`},
		{name: "the source of the resolver", code: `from_source("198.18.0.1", freebind)`},
		{name: "a synthetic source", code: `from_source("198.18.1.0", freebind)`},
		{name: "a source of the loopback device", code: `from_source("127.0.0.1")`},
		{name: "a source with a device", code: `from_source("127.0.0.1", (socket.SOL_SOCKET, 25, b"lo\0"))`},
		{name: "a device", code: `(lambda s: (s.settimeout(4), s.connect((server, 80)), s.sendall(mark.encode()), read(s))[3])(option(socket.SOL_SOCKET, 25, b"lo\0"))`},
	}
	for name, line := range map[string]string{
		"a route":           "ip route replace default via 127.0.0.1 dev lo",
		"the local routes":  "ip route flush table local",
		"an ipv6 route":     "ip -6 route add 2600::/16 dev lo",
		"an address":        "ip address add 9.9.9.9/32 dev lo",
		"no address":        "ip address flush dev lo",
		"a link":            "ip link add evil type dummy",
		"a veth":            "ip link add evil type veth peer name other netns 1",
		"a tunnel":          "ip link add evil type gretap remote 9.9.9.9 local 198.18.0.2",
		"a tap":             "ip tuntap add evil mode tap",
		"the device down":   "ip link set lo down",
		"a rule":            "ip rule add from all table 5",
		"no rules":          "ip rule flush",
		"no nftables":       "nft flush ruleset",
		"the nftables":      "nft list ruleset | grep .",
		"nftables":          "nft add table inet evil",
		"iptables":          "iptables -t nat -F",
		"a setting":         "echo 1 > /proc/sys/net/ipv4/ip_forward",
		"nonlocal binds":    "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind",
		"low ports":         "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start",
		"a network":         "unshare --net true",
		"a user":            "unshare --user --map-root-user true",
		"both":              "unshare --user --map-root-user --net ip link set lo up",
		"all":               "unshare --user --map-root-user --net --mount --pid --fork true",
		"the first network": "nsenter --net=/proc/1/ns/net true",
		"the other sockets": "ss -Hxl | grep -v agent | grep egress",
		"a state directory": "ls -d " + a.root + " || ls /run/sandbox-runtime || ls /proc/1/root/../@egress",
		"a namespace":       "ip netns add evil",
	} {
		attempts = append(attempts, attempt{name: name, code: fmt.Sprintf("sh(%q)", line)})
	}
	for _, taken := range []string{`"0.0.0.0", 53`, `"127.0.0.1", 53`, `"198.18.0.2", 53`, `"198.18.0.1", 53`, `"9.9.9.9", 53`, `"::", 53`, `"::1", 53`, `"fd53::1", 53`} {
		for _, options := range []string{"", ", reuse", ", share", ", reuse, share", ", freebind, reuse, share"} {
			for _, kind := range []string{"stream", "datagram"} {
				attempts = append(attempts, attempt{name: "a server at " + taken + " " + kind + options, code: fmt.Sprintf("bound(%s, %s%s)", taken, kind, options)})
			}
		}
	}
	for _, free := range []string{
		`bound("0.0.0.0", 80, stream, reuse)`, `bound("127.0.0.1", 80, stream, reuse)`, `bound("198.18.0.2", 80, stream, reuse)`,
		`bound("0.0.0.0", 80, stream, reuse, share)`, `bound("::", 80, stream, reuse)`, `bound(synthetic(), 80, stream, reuse, freebind)`,
		`bound("198.18.0.1", 80, stream, reuse, freebind)`, `bound("198.18.0.1", 3128, stream, reuse, freebind)`, `bound("9.9.9.9", 80, stream, reuse, freebind)`,
		`bound("0.0.0.0", 3128, stream, reuse), bound("0.0.0.0", 443, stream, reuse)`,
		`*[bound("198.18.0.1", 0, stream, freebind) for i in range(400)]`, `*[bound("0.0.0.0", 0, datagram) for i in range(400)]`,
		`*[connect("198.18.0.1", 53) for i in range(200)]`,
	} {
		attempts = append(attempts, attempt{name: "beside " + free, code: fmt.Sprintf(`beside(%s)`, free), works: true})
	}
	attempts = append(attempts,
		attempt{name: "signals to the first process", code: `stopped()`, works: true},
		attempt{name: "the end of all sockets", code: `(sh("ss -K; true"), get(good))[1]`, works: true},
		attempt{name: "while ports are taken", code: `race(lambda: bound("0.0.0.0", 80, stream, reuse, share).close())`, works: true},
		attempt{name: "while connections are reset", code: `race(lambda: connect(good).close())`, works: true},
		attempt{name: "while queries are sent", code: `race(lambda: socket.socket(four, datagram).sendto(question("x.evil.test"), ("198.18.0.1", 53)))`, works: true})
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
}
