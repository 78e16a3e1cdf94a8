package integration

import (
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// noProxyServer answers at all addresses of the sandbox, in the forms that the clients read.
const noProxyServer = `
import http.server, socket
word = b'{"name": "word", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "word", "version": "1.0.0"}}}'
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = word
        if self.path.startswith("/git/info/refs"):
            body = b"1" * 40 + b"\trefs/heads/1.0.0\n"
        elif self.path.endswith("/@v/list"):
            body = b"v1.0.0\n"
        elif self.path.endswith(".info"):
            body = b'{"Version": "v1.0.0"}'
        elif self.path.endswith(".mod"):
            body = b"module hello.test/word\n"
        self.send_response(404 if self.path.endswith("/HEAD") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
Server(("::", 8000), Handler).serve_forever()`

// noProxyClients print 1.0.0 if the URL $1 leads to the server inside. takesRange says that the client reads 127.0.0.0/8 in
// NO_PROXY, and takesIPv6 that it can connect to a literal address of IPv6.
var noProxyClients = []struct {
	name, program         string
	takesRange, takesIPv6 bool
	script                string
}{
	{"curl", "curl", true, true, `curl -sS --fail $1/word`},
	{"git", "git", true, true, `git ls-remote $1/git`},
	{"requests", "python3", true, true, `PYTHONPATH=/pip python3 -c 'import sys; from pip._vendor import requests; print(requests.get(sys.argv[1]).text)' $1/word`},
	{"go", "go", true, true, `export GOPROXY=$1 GOSUMDB=off GOTOOLCHAIN=local GOFLAGS=-modcacherw GOPATH=$PWD/path GOCACHE=$PWD/cache; /go/bin/go list -m -versions hello.test/word`},
	{"wget", "wget", false, true, `wget -q -O - $1/word`},
	{"urllib", "python3", false, true, `python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read())' $1/word`},
	{"npm", "npm", false, false, `npm view --fetch-retries 0 --registry $1/ word version`},
	{"apt", "apt-get", false, true, `/usr/lib/apt/apt-helper -o Acquire::Retries=0 download-file $1/word word >&2; cat word`},
}

// Clients that ask a proxy reach the servers inside without it, by the rules that each of them has for NO_PROXY. The proxy
// refuses such a request.
func TestClientsReachTheSandboxWithoutTheProxy(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newNetworkWorld(t)
	w.says(t, "up", "--network", "proxied", "--bind", peer("usr/lib/python3/dist-packages")+":/pip", "--bind", goRoot(t)+":/go", "box")
	t.Cleanup(func() { w.on(t, "down", "box") })
	w.says(t, "exec", "--detach", "box", "python3", "-c", noProxyServer)
	eventually(t, "the server listens", func() bool {
		return w.on(t, "exec", "box", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000").code == 0
	})
	for _, c := range noProxyClients {
		t.Run(c.name, func(t *testing.T) {
			need(t, proxiedClient{program: c.program}.missing())
			hosts := []string{"localhost", "127.0.0.1", "127.0.0.2", "127.0.1.1", "0.0.0.0", "198.18.0.2", "sandbox"}
			if c.takesIPv6 {
				hosts = append(hosts, "[::1]", "[fd53::2]")
			}
			if c.takesRange {
				hosts = append(hosts, "127.9.9.9")
			}
			for _, host := range hosts {
				got := w.on(t, "exec", "box", "sh", "-c", "set -e; cd $(mktemp -d)\n"+c.script, "sh", "http://"+host+":8000")
				if got.code != 0 || !strings.Contains(got.stdout, "1.0.0") {
					t.Errorf("%s: %+v", host, got)
				}
			}
		})
	}
}
