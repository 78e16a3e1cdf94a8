package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// requestPrelude has helpers of attempts with requests of plain HTTP.
const requestPrelude = `
def request(head, body="", to=good, port=80, pause=0):
    return tcp(to, port, head.replace("MARK", mark).replace("\n", "\r\n") + body, pause=pause)
def after(first, *more):
    # The answer to the requests that follow the first one.
    s = connect(good)
    s.settimeout(4)
    s.sendall(first.replace("\n", "\r\n").encode("latin-1"))
    if more:
        got = read(s)
        for m in more:
            s.sendall(m.replace("MARK", mark).replace("\n", "\r\n").encode("latin-1"))
    else:
        got = b""
    while True:
        part = s.recv(65536)
        got += part
        if not part or got.count(b"end of answer\n") > 1:
            return got.partition(b"end of answer\n")[2]
def pipelined(first, second):
    return after((first + second).replace("MARK", mark))
ok = "GET /first HTTP/1.1\nHost: good.test\n\n"
def proxy(head, port=3128, *more):
    s = connect("198.18.0.1", port)
    s.settimeout(4)
    s.sendall(head.replace("MARK", mark).replace("\n", "\r\n").encode("latin-1"))
    got = s.recv(65536)
    if not got.startswith(b"HTTP/1.1 200"):
        return got
    for m in more:
        s.sendall(m() if callable(m) else m.replace("MARK", mark).replace("\n", "\r\n").encode("latin-1"))
    return read(s) if more else got
`

// refusedHeads are heads of requests that must not arrive at good.test. A line ends with CRLF, and MARK stands for the mark.
var refusedHeads = map[string]string{
	"another host":                     "GET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"a host below the name":            "GET /MARK HTTP/1.1\nHost: a.good.test\n\n",
	"a host above the name":            "GET /MARK HTTP/1.1\nHost: test\n\n",
	"an address as the host":           "GET /MARK HTTP/1.1\nHost: 9.9.9.9\n\n",
	"an IPv6 address as the host":      "GET /MARK HTTP/1.1\nHost: [2600:9::9]\n\n",
	"another port":                     "GET /MARK HTTP/1.1\nHost: good.test:81\n\n",
	"port zero":                        "GET /MARK HTTP/1.1\nHost: good.test:0\n\n",
	"an empty port":                    "GET /MARK HTTP/1.1\nHost: good.test:\n\n",
	"a port above all":                 "GET /MARK HTTP/1.1\nHost: good.test:65616\n\n",
	"two hosts":                        "GET /MARK HTTP/1.1\nHost: good.test\nHost: evil.test\n\n",
	"two hosts in the other order":     "GET /MARK HTTP/1.1\nHost: evil.test\nHost: good.test\n\n",
	"the same host twice":              "GET /MARK HTTP/1.1\nHost: good.test\nhost: good.test\n\n",
	"no host":                          "GET /MARK HTTP/1.1\nX: y\n\n",
	"no host in HTTP 1.0":              "GET /MARK HTTP/1.0\n\n",
	"an empty host":                    "GET /MARK HTTP/1.1\nHost:\n\n",
	"two hosts in one field":           "GET /MARK HTTP/1.1\nHost: good.test, evil.test\n\n",
	"two words in the host":            "GET /MARK HTTP/1.1\nHost: good.test evil.test\n\n",
	"a user in the host":               "GET /MARK HTTP/1.1\nHost: good.test@evil.test\n\n",
	"a path in the host":               "GET /MARK HTTP/1.1\nHost: evil.test/good.test\n\n",
	"a NUL in the host":                "GET /MARK HTTP/1.1\nHost: good.test\x00evil.test\n\n",
	"a folded host":                    "GET /MARK HTTP/1.1\nHost: good.test\n evil.test\n\n",
	"a host after a fold":              "GET /MARK HTTP/1.1\nX: y\n\tHost: evil.test\nHost: good.test\n\n",
	"a first field with a space":       "GET /MARK HTTP/1.1\n Host: evil.test\nHost: good.test\n\n",
	"a space after Host":               "GET /MARK HTTP/1.1\nHost : evil.test\nHost: good.test\n\n",
	"a tab after Host":                 "GET /MARK HTTP/1.1\nHost\t: evil.test\nHost: good.test\n\n",
	"a CR before Host":                 "GET /MARK HTTP/1.1\nX: y\rHost: evil.test\nHost: good.test\n\n",
	"a NUL in Host":                    "GET /MARK HTTP/1.1\nHo\x00st: evil.test\nHost: good.test\n\n",
	"an absolute target":               "GET http://evil.test/MARK HTTP/1.1\nHost: good.test\n\n",
	"an absolute target and no host":   "GET http://good.test/MARK HTTP/1.1\n\n",
	"another absolute target":          "GET http://good.test/MARK HTTP/1.1\nHost: evil.test\n\n",
	"both for another host":            "GET http://evil.test/MARK HTTP/1.1\nHost: evil.test\n\n",
	"a user in the target":             "GET http://good.test@evil.test/MARK HTTP/1.1\nHost: good.test\n\n",
	"a backslash in the target":        "GET http://evil.test\\good.test/MARK HTTP/1.1\nHost: good.test\n\n",
	"another scheme":                   "GET https://good.test/MARK HTTP/1.1\nHost: good.test\n\n",
	"no scheme":                        "GET evil.test/MARK HTTP/1.1\nHost: good.test\n\n",
	"a target of two slashes":          "GET http:///MARK HTTP/1.1\nHost: good.test\n\n",
	"a target with a fragment":         "GET /MARK#x HTTP/1.1\nHost: good.test\n\n",
	"a target with a space":            "GET /MARK x HTTP/1.1\nHost: good.test\n\n",
	"two spaces":                       "GET  /MARK HTTP/1.1\nHost: good.test\n\n",
	"tabs":                             "GET\t/MARK\tHTTP/1.1\nHost: evil.test\n\n",
	"a vertical tab":                   "GET /MARK\x0bHTTP/1.1\nHost: evil.test\n\n",
	"a space first":                    " GET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"a header of the PROXY protocol":   "PROXY TCP4 192.0.2.1 9.9.9.9 1 80\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"an unknown PROXY header":          "PROXY UNKNOWN\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"a line first":                     "\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"many lines first":                 strings.Repeat("\n", 100) + "GET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"HTTP 0.9 with a host":             "GET /MARK\nHost: evil.test\n\n",
	"HTTP 2 by prior knowledge":        "PRI * HTTP/2.0\n\nSM\n\nMARK",
	"HTTP 1.2":                         "GET /MARK HTTP/1.2\nHost: good.test\n\n",
	"a lower-case version":             "GET /MARK http/1.1\nHost: evil.test\n\n",
	"a lower-case method":              "get /MARK HTTP/1.1\nHost: evil.test\n\n",
	"an unknown method":                "FETCH /MARK HTTP/1.1\nHost: evil.test\n\n",
	"a NUL after the version":          "GET /MARK HTTP/1.1\x00\nHost: evil.test\n\n",
	"a long first line":                "GET /MARK" + strings.Repeat("x", 70000) + " HTTP/1.1\nHost: evil.test\n\n",
	"a long unknown method":            strings.Repeat("X", 5000) + " /MARK HTTP/1.1\nHost: evil.test\n\n",
	"a length and chunks":              "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: 4\nTransfer-Encoding: chunked\n\n0\n\n",
	"chunks and a length":              "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked\nContent-Length: 4\n\n0\n\n",
	"two lengths":                      "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: 4\nContent-Length: 5\n\nbody",
	"the same length twice":            "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: 4\nContent-Length: 4\n\nbody",
	"two lengths in one field":         "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: 4, 4\n\nbody",
	"a length with a sign":             "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: +4\n\nbody",
	"a negative length":                "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: -4\n\nbody",
	"a hexadecimal length":             "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: 0x4\n\nbody",
	"a length above all":               "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length: 99999999999999999999\n\nbody",
	"an empty length":                  "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length:\n\nbody",
	"a space after Content-Length":     "POST /MARK HTTP/1.1\nHost: good.test\nContent-Length : 4\n\nbody",
	"chunks twice":                     "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n0\n\n",
	"chunks and identity":              "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked, identity\n\n0\n\n",
	"identity":                         "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding: identity\n\n",
	"an unknown encoding":              "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding: xchunked\n\n0\n\n",
	"a vertical tab before chunked":    "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding: \x0bchunked\n\n0\n\n",
	"a space after Transfer-Encoding":  "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding : chunked\n\n0\n\n",
	"chunks in HTTP 1.0":               "POST /MARK HTTP/1.0\nHost: good.test\nTransfer-Encoding: chunked\n\n0\n\n",
	"a folded encoding":                "POST /MARK HTTP/1.1\nHost: good.test\nTransfer-Encoding:\n chunked\n\n0\n\n",
	"a hidden length":                  "POST /MARK HTTP/1.1\nHost: good.test\nConnection: Content-Length\nContent-Length: 4\n\nbody",
	"a hidden host":                    "GET /MARK HTTP/1.1\nHost: good.test\nConnection: Host\n\n",
	"a method for a proxy":             "CONNECT evil.test:443 HTTP/1.1\nHost: evil.test:443\n\nMARK",
	"CONNECT to the same name":         "CONNECT good.test:443 HTTP/1.1\nHost: good.test:443\n\nMARK",
	"CONNECT to the same port":         "CONNECT good.test:80 HTTP/1.1\nHost: good.test:80\n\nMARK",
	"a field without a colon":          "GET /MARK HTTP/1.1\nHost: good.test\nevil\n\n",
	"a field without a name":           "GET /MARK HTTP/1.1\n: x\nHost: good.test\n\n",
	"a field with a space in its name": "GET /MARK HTTP/1.1\nHost: good.test\nX Y: z\n\n",
	"WebSocket with a body":            "GET /MARK HTTP/1.1\nHost: good.test\nUpgrade: websocket\nConnection: upgrade\nContent-Length: 4\n\nbody",
	"WebSocket by POST":                "POST /MARK HTTP/1.1\nHost: good.test\nUpgrade: websocket\nConnection: upgrade\n\n",
	"WebSocket to another host":        "GET /MARK HTTP/1.1\nHost: evil.test\nUpgrade: websocket\nConnection: upgrade\n\n",
}

// later are requests that follow an allowed one on the same connection. They must not arrive.
var later = map[string]string{
	"another host":      "GET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"an absolute one":   "GET http://evil.test/MARK HTTP/1.1\nHost: evil.test\n\n",
	"two hosts":         "GET /MARK HTTP/1.1\nHost: good.test\nHost: evil.test\n\n",
	"CONNECT":           "CONNECT evil.test:443 HTTP/1.1\nHost: evil.test:443\n\nMARK",
	"HTTP 2":            "PRI * HTTP/2.0\n\nSM\n\nMARK",
	"WebSocket":         "GET /MARK HTTP/1.1\nHost: good.test\nUpgrade: websocket\nConnection: upgrade\n\n",
	"other bytes":       "\x00\x01MARK\n\n",
	"a lower-case line": "get /MARK http/1.1\nHost: evil.test\n\n",
}

// bodies are bodies of an allowed request that hide a second one.
var bodies = map[string]string{
	"after the length":          "POST / HTTP/1.1\nHost: good.test\nContent-Length: 4\n\nbodyGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after a length of zero":    "POST / HTTP/1.1\nHost: good.test\nContent-Length: 0\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after a GET":               "GET / HTTP/1.1\nHost: good.test\nContent-Length: 4\n\nbodyGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after the chunks":          "POST / HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked\n\n4\nbody\n0\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"in a trailer":              "POST / HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked\n\n0\nHost: evil.test\nX: MARK\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"in an extension":           "POST / HTTP/1.1\nHost: good.test\nTransfer-Encoding: chunked\n\n0;x=MARK\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after an expectation":      "POST / HTTP/1.1\nHost: good.test\nExpect: 100-continue\nContent-Length: 4\n\nbodyGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after a change to HTTP 2":  "GET / HTTP/1.1\nHost: good.test\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\n\nPRI * HTTP/2.0\n\nSM\n\nMARK",
	"after an ignored upgrade":  "GET / HTTP/1.1\nHost: good.test\nConnection: Upgrade\nUpgrade: TLS/1.0\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after two upgrades":        "GET / HTTP/1.1\nHost: good.test\nConnection: Upgrade\nUpgrade: websocket\nUpgrade: h2c\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
	"after a refused WebSocket": "GET / HTTP/1.1\nHost: good.test\nConnection: Upgrade\nUpgrade: websocket\n\nGET /MARK HTTP/1.1\nHost: evil.test\n\n",
}

// A request of plain HTTP arrives only at the host that it names. Nothing hides in it.
func TestAttackByRequests(t *testing.T) {
	testhost.Long(t)
	need(t, world())
	a := newArena(t)
	attempts := []attempt{
		{name: "a request", code: `request("GET /MARK HTTP/1.1\nHost: good.test\n\n")`, works: true},
		{name: "a request with a port", code: `request("GET /MARK HTTP/1.1\nHost: GOOD.test.:80\n\n")`, works: true},
		{name: "an absolute request", code: `request("GET http://good.test/MARK HTTP/1.1\nHost: good.test\n\n")`, works: true},
		{name: "a request of HTTP 1.0", code: `request("GET /MARK HTTP/1.0\nHost: good.test\n\n")`, works: true},
		{name: "two requests", code: `after(ok, ok)`, works: true},
		{name: "two requests at once", code: `pipelined(ok, ok + ok)`, works: true},
		{name: "another host in pieces", code: `tcp(good, 80, *list("GET /%s HTTP/1.1\r\nHost: evil.test\r\n\r\n" % mark), pause=0.002)`},
		{name: "another host after a pause", code: `tcp(good, 80, "", *list("GET /%s HTTP/1.1\r\nHost: evil.test\r\n\r\n" % mark), pause=0.025)`},
		{name: "plain HTTP at port 443", code: `request("GET /MARK HTTP/1.1\nHost: evil.test\n\n", port=443)`},
		{name: "lines that end with LF", code: `tcp(good, 80, "GET /%s HTTP/1.1\nHost: evil.test\n\n" % mark)`},
		{name: "lines that end with CR", code: `tcp(good, 80, "GET /%s HTTP/1.1\rHost: evil.test\r\r" % mark)`, late: true},
		{name: "a head that ends with LF", code: `tcp(good, 80, "GET /%s HTTP/1.1\r\nHost: good.test\r\n\n" % mark)`},
		{name: "data in the SYN", code: `(lambda s: (s.sendto(("GET /%s HTTP/1.1\r\nHost: evil.test\r\n\r\n" % mark).encode(), socket.MSG_FASTOPEN, (socket.gethostbyname(good), 80)), read(s))[1])(socket.socket(four, stream))`},
		{name: "version 2 of the PROXY protocol", code: `tcp(good, 80, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "GET /%s HTTP/1.1\r\nHost: evil.test\r\n\r\n" % mark)`},
		{name: "urgent data", code: `(lambda s: (s.send(b"G", socket.MSG_OOB), s.sendall(("ET /%s HTTP/1.1\r\nHost: evil.test\r\n\r\n" % mark).encode()), read(s))[2])(connect(good))`},
	}
	for name, head := range refusedHeads {
		attempts = append(attempts, attempt{name: name, code: fmt.Sprintf("request(%q)", head)})
	}
	for name, head := range later {
		attempts = append(attempts,
			attempt{name: name + " later", code: fmt.Sprintf("after(ok, %q)", head)},
			attempt{name: name + " in the same packet", code: fmt.Sprintf("pipelined(ok, %q)", head)})
	}
	for name, text := range bodies {
		attempts = append(attempts, attempt{name: "a request " + name, code: fmt.Sprintf(`pipelined("", %q)`, text)})
	}
	a.prelude = requestPrelude
	a.try(t, allowGood, attempts)
	a.onlyArrive(t, usual()...)
}
