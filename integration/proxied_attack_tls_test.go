package integration

import (
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// tlsPrelude has helpers of attempts with TLS.
const tlsPrelude = `
def ext(kind, body):
    return struct.pack(">HH", kind, len(body)) + body
def sni(*names, kind=0):
    return ext(0, (lambda l: struct.pack(">H", len(l)) + l)(b"".join(struct.pack(">BH", kind, len(n)) + n for n in names)))
def handshake(*exts):
    rest = ext(10, b"\0\2\0\x1d") + ext(13, b"\0\x08\x04\x03\x08\x04\x08\x05\x08\x06") + ext(43, b"\4\3\4\3\3") + ext(51, b"\0\x24\0\x1d\0\x20" + os.urandom(32))
    all = b"".join(exts) + rest if exts != (None,) else b""
    body = b"\3\3" + os.urandom(32) + b"\0" + b"\0\6\x13\1\xc0\x2b\xc0\x2f" + b"\1\0" + (struct.pack(">H", len(all)) + all if all else b"")
    return b"\1" + struct.pack(">I", len(body))[1:] + body
def record(data, kind=22, version=b"\3\1"):
    return bytes([kind]) + version + struct.pack(">H", len(data)) + data
def records(data, size):
    return b"".join(record(data[i:i+size]) for i in range(0, len(data), size))
def talk(*parts, to=good, port=443, pause=0):
    # Only a ServerHello is an answer.
    s = connect(to, port)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for p in parts:
        s.sendall(p)
        time.sleep(pause)
    s.settimeout(4)
    got = s.recv(65536)
    return got if got[:1] == b"\x16" else None
def one(data):
    return [data[i:i+1] for i in range(len(data))]
def bad():
    return mark.strip("<>").encode() + b".evil.test"
def hello(*names):
    return record(handshake(sni(*(names or (bad(),)))))
def v2():
    body = b"\1\3\3\0\6\0\0\0\x20" + b"\0\0\x2f\0\x00\x35" + os.urandom(32)
    return struct.pack(">H", 0x8000 | len(body)) + body
g, marked = b"good.test", lambda: ext(0x1234, mark.encode())
ech = lambda: ext(0xfe0d, b"\0\0\1\0\1\0\0\x20" + os.urandom(32) + b"\0\x20" + os.urandom(32))
`

// An encrypted connection arrives only if it asks for the name that the sandbox was allowed.
func TestAttackByServerNames(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	a.prelude = tlsPrelude
	a.try(t, allowGood, []attempt{
		{name: "the name", code: `tls(good, good)`, works: true},
		{name: "the name in upper case", code: `tls(good, "GOOD.TEST")`, works: true},
		{name: "a name below", code: `tls("a.good.test", "a.good.test")`, works: true},
		{name: "a hello", code: `talk(hello(g))`, works: true},
		{name: "a hello in pieces", code: `talk(*one(hello(g)))`, works: true},
		{name: "a hello in small records", code: `talk(records(handshake(sni(g)), 1))`, works: true},
		{name: "a hello in small records and pieces", code: `talk(*one(records(handshake(sni(g)), 1)))`, works: true},
		{name: "the outer name of ech", code: `talk(record(handshake(sni(g), ech())))`, works: true},
		{name: "a hello after a pause", code: `talk(b"", hello(g), pause=0.3)`, works: true},
		{name: "another name", code: `tls(good, mark.strip("<>") + ".evil.test")`},
		{name: "another name by hand", code: `talk(hello())`},
		{name: "another allowed name", code: `talk(hello(b"a.good.test"), marked())`},
		{name: "another outer name of ech", code: `talk(record(handshake(sni(bad()), ech())))`},
		{name: "ech without a name", code: `talk(record(handshake(ech(), marked())))`},
		{name: "no name", code: `talk(record(handshake(marked())))`},
		{name: "no extension", code: `talk(record(handshake(None)) + mark.encode())`},
		{name: "an address as the name", code: `talk(record(handshake(sni(b"9.9.9.9"), marked())))`},
		{name: "an empty name", code: `talk(record(handshake(sni(b""), marked())))`},
		{name: "two names", code: `talk(hello(g, bad()))`},
		{name: "two names in the other order", code: `talk(hello(bad(), g))`},
		{name: "two lists of names", code: `talk(record(handshake(sni(g), sni(bad()))))`},
		{name: "two lists in the other order", code: `talk(record(handshake(sni(bad()), sni(g))))`},
		{name: "a name of another kind", code: `talk(record(handshake(sni(bad(), kind=1))))`},
		{name: "a trailing dot", code: `talk(record(handshake(sni(b"good.test."), marked())))`},
		{name: "a nul in the name", code: `talk(hello(b"good.test\0." + bad()))`},
		{name: "a space in the name", code: `talk(hello(g + b" " + bad()))`},
		{name: "another name in pieces", code: `talk(*one(hello()))`},
		{name: "another name in small records", code: `talk(records(handshake(sni(bad())), 1))`},
		{name: "another name in small records and pieces", code: `talk(*one(records(handshake(sni(bad())), 1)), pause=0.0005)`},
		{name: "another name after a pause", code: `talk(b"", hello(), pause=0.3)`},
		{name: "another name after one byte and a pause", code: `talk(b"\x16", hello()[1:], pause=0.3)`},
		{name: "another name after an empty record", code: `talk(record(b"") + hello())`},
		{name: "another name after a warning", code: `talk(record(b"\1\x5a", 21) + hello())`},
		{name: "another name after a warning and a pause", code: `talk(record(b"\1\x5a", 21), hello(), pause=0.1)`},
		{name: "another name after a fatal alert", code: `talk(record(b"\2\x5a", 21) + hello())`},
		{name: "another name after a change of ciphers", code: `talk(record(b"\1", 20) + hello())`},
		{name: "another name after an empty alert", code: `talk(record(b"", 21) + hello())`},
		{name: "another name after empty data", code: `talk(record(b"", 23) + hello())`},
		{name: "another name after a heartbeat", code: `talk(record(b"", 24) + hello())`},
		{name: "another name in an old version", code: `talk(record(handshake(sni(bad())), version=b"\3\0"))`},
		{name: "another name in an unknown version", code: `talk(record(handshake(sni(bad())), version=b"\3\xff"))`},
		{name: "a hello of version 2", code: `talk(v2() + mark.encode())`},
		{name: "a server hello", code: `talk(record(b"\2" + handshake(sni(bad()))[1:]))`},
		{name: "another message first", code: `talk(record(b"\0\0\0\0" + handshake(sni(bad()))))`},
		{name: "a long hello", code: `talk(records(handshake(ext(21, bytes(15000)), sni(g)), 15000))`, works: true},
		{name: "a hello in too many records", code: `talk(records(handshake(ext(21, bytes(12000)), marked(), sni(g)), 1))`},
		{name: "another name after a header of the PROXY protocol", code: `talk(b"PROXY TCP4 192.0.2.1 9.9.9.9 1 443\r\n" + hello())`},
		{name: "another name at port 80", code: `talk(hello(), port=80)`},
		{name: "no tls to another name", code: `talk(hello(), to="198.18.0.1")`},
	})
	a.onlyArrive(t, usual()...)
}
