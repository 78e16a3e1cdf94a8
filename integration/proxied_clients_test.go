package integration

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// A proxiedClient is a client that people use. Its script gets the name and the port of a server.
type proxiedClient struct {
	name, program string
	host, port    string // that a rule allows
	prepare       string // a script without network
	script, want  string
	unknown       string // a part of the client's own message about a name that does not exist
	otherPort     string // of the host, in no rule
	refused       string // a part of the client's own message about a closed port
}

// proxiedClients have no setting of a proxy. pip and npm would pause between tries, so their cases limit the tries.
var proxiedClients = []proxiedClient{
	{"curl", "curl", serverName, "443", "", `curl -sS -4 https://$1:$2/hello; curl -sS -6 https://$1:$2/hello`, "hello\nhello",
		curlUnknown, "8443", curlRefused + "8443"},
	{"curl over HTTP/2", "curl", serverName, "443", "", `curl -sS --http2 https://$1:$2/protocol`, "HTTP/2.0",
		curlUnknown, "8443", curlRefused + "8443"},
	{"curl over plain HTTP", "curl", serverName, "80", "", `curl -sS http://$1:$2/hello`, "hello",
		curlUnknown, "8080", curlRefused + "8080"},
	{"curl with uploads", "curl", serverName, "443", "", `head -c 5000000 /dev/zero > file; curl -sS --http1.1 -T file https://$1:$2/upload; curl -sS -T - https://$1:$2/upload < file`,
		"5000000 bytes\n5000000 bytes", curlUnknown, "8443", curlRefused + "8443"},
	{"curl with uploads over plain HTTP", "curl", serverName, "80", "", `head -c 5000000 /dev/zero > file; curl -sS -T file http://$1:$2/upload; curl -sS -T - http://$1:$2/upload < file`,
		"5000000 bytes\n5000000 bytes", curlUnknown, "8080", curlRefused + "8080"},
	{"wget", "wget", serverName, "443", "", `wget -nv -O hello https://$1:$2/hello; cat hello`, "hello",
		"unable to resolve host address", "8443", "Connection refused"},
	{"git over https", "git", serverName, "443", "", `git clone -q https://$1:$2/git/repository.git r; cat r/file`, "content",
		curlUnknown, "8443", curlRefused + "8443"},
	{"git over plain HTTP", "git", serverName, "80", "", `git clone -q http://$1:$2/git/repository.git r; cat r/file`, "content",
		curlUnknown, "8080", curlRefused + "8080"},
	{"git over ssh", "git", serverName, "22", "", `GIT_SSH_COMMAND="` + sshClient + `" git clone -q ssh://visitor@$1:$2$WWW/repository.git r; cat r/file`, "content",
		sshUnknown, "2222", "port 2222: Connection refused"},
	{"ssh", "ssh", serverName, "22", "", sshClient + ` -p $2 visitor@$1 echo a word of ssh`, "a word of ssh",
		sshUnknown, "2222", "port 2222: Connection refused"},
	{"pip", "python3", "pypi.test", "443", "", `PYTHONPATH=/pip python3 -m pip --isolated --disable-pip-version-check --retries 1 install -q --no-cache-dir \
		--index-url https://$1:$2/simple/ --target lib hello-pip; PYTHONPATH=lib python3 -c 'import hello_pip; print(hello_pip.word)'`, "a word of pip",
		"Name or service not known", "8443", "Connection refused"},
	{"python", "python3", serverName, "443", "", `python3 -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())' https://$1:$2/hello`, "hello",
		"Name or service not known", "8443", "Connection refused"},
	{"sockets", "python3", serverName, "7", "", `python3 -c '` + socketClient + `' $1 $2`, "hello\n1000000\nbye", "Name or service not known", "8", "Connection refused"},
	{"many connections", "python3", serverName, "7", "", `python3 -c '` + manySockets + `' $1 $2`, "500", "Name or service not known", "8", "Connection refused"},
	{"npm", "npm", "npm.test", "443", "", `npm install --loglevel error --no-audit --no-fund --fetch-retries 0 --registry https://$1:$2/npm/ hello-npm >&2
		node -e 'console.log(require("hello-npm"))'`, "a word of npm",
		"ENOTFOUND", "8443", "ECONNREFUSED"},
	{"node", "node", serverName, "443", "", `node -e '
		require("https").get(process.argv[1], (r) => r.pipe(process.stdout)).on("error", (e) => { console.error(e); process.exitCode = 1 })' https://$1:$2/hello`, "hello",
		"getaddrinfo ENOTFOUND " + forbiddenName, "8443", "ECONNREFUSED"},
	{"WebSocket", "node", serverName, "443", "", webSocketClient + ` wss://$1:$2/echo`, "a word of WebSocket", webSocketFailed, "8443", webSocketFailed},
	{"WebSocket over plain HTTP", "node", serverName, "80", "", webSocketClient + ` ws://$1:$2/echo`, "a word of WebSocket", webSocketFailed, "8080", webSocketFailed},
	{"go", "go", "modules.test", "443", "", `printf 'module own.test/own\n\ngo 1.21\n\nrequire hello.test/word v1.0.0\n' > go.mod
		printf 'package own\n\nimport "hello.test/word"\n\nconst Own = word.Word\n' > own.go
		export GOPROXY=https://$1:$2 GOSUMDB=off GOTOOLCHAIN=local GOFLAGS='-modcacherw -mod=mod' GOPATH=$PWD/path GOCACHE=$PWD/cache
		/go/bin/go build . && grep -o 'a word of Go' path/pkg/mod/hello.test/word@v1.0.0/word.go`, "a word of Go",
		"no such host", "8443", "connection refused"},
	{"java", "javac", serverName, "443", javaClient, `java -XX:TieredStopAtLevel=1 -Djavax.net.ssl.trustStore=/workspace/trusted.p12 -Djavax.net.ssl.trustStorePassword=password \
		-cp /workspace Client https://$1:$2/hello`, "hello",
		"java.net.UnknownHostException: " + forbiddenName, "8443", "java.net.ConnectException: Connection refused"},
	{"apt", "apt-get", "deb.test", "443", "", aptClient, "a word of apt",
		aptUnknown, "8443", "Connection refused"},
	{"apt over plain HTTP", "apt-get", "deb.test", "80", "", aptClient, "a word of apt",
		aptUnknown, "8080", "Connection refused"},
	{"psql", "postgres", "db.test", "5432", "", `$POSTGRES/psql -Atc "select 'a word of ' || 'postgres'" "host=$1 port=$2 user=visitor dbname=postgres sslmode=verify-full sslrootcert=` + trustedInside + `"`, "a word of postgres",
		`could not translate host name "` + forbiddenName + `" to address`, "5433", "Connection refused"},
	{"openssl", "openssl", serverName, "443", "", `printf 'GET /hello HTTP/1.0\r\nHost: %s\r\n\r\n' $1 |
		openssl s_client -quiet -verify_return_error -CAfile ` + trustedInside + ` -connect $1:$2 > answer; tail -n 1 answer`, "hello",
		"Name or service not known", "8443", "Connection refused"},
}

// The messages of clients that have several cases.
const (
	curlUnknown     = "Could not resolve host: " + forbiddenName
	curlRefused     = "Failed to connect to " + serverName + " port "
	sshUnknown      = "Could not resolve hostname " + forbiddenName
	aptUnknown      = "Could not resolve '" + forbiddenName + "'"
	webSocketFailed = "Received network error" // node tells no more
)

// socketClient waits for the server's first word, and ends its own side of the connection before the server does.
const socketClient = `
import socket, sys, threading
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
f = s.makefile("rb")
print(f.readline().decode().strip())
def send():
    s.sendall(b"\0" * 1000000 + b"\n")
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
print(len(f.readline()) - 1)
print(f.read().decode())`

// manySockets are open at once.
const manySockets = `
import socket, sys
all = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(500)]
for s in all: s.sendall(b"word\n")
def words(f): return f.readline() + f.readline()
print(sum(words(s.makefile("rb")) == b"hello\nword\n" for s in all))`

// webSocketClient prints the echo of its message.
const webSocketClient = `node --no-warnings --experimental-websocket -e '
	const s = new WebSocket(process.argv[1])
	s.onopen = () => s.send("a word of WebSocket")
	s.onmessage = (m) => { console.log(m.data); s.close() }
	s.onerror = (e) => { console.error(e.message); process.exitCode = 1 }'`

const sshClient = "ssh -i /workspace/key -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=known -o LogLevel=ERROR"

// aptClient prints a file of a package. With plain HTTP apt sends several requests before the first answer.
const aptClient = `case $2 in 443 | 8443) scheme=https ;; *) scheme=http ;; esac
	mkdir -p state/lists/partial cache/archives/partial etc; touch status
	echo "deb [trusted=yes] $scheme://$1:$2/debian ./" > etc/sources.list
	apt="-q -o Dir::State=$PWD/state -o Dir::State::status=$PWD/status -o Dir::Cache=$PWD/cache -o Dir::Etc=$PWD/etc -o APT::Update::Error-Mode=any -o Acquire::Retries=0"
	apt-get $apt update >&2; apt-get $apt download hello-apt >&2; dpkg-deb --fsys-tarfile hello-apt*.deb | tar -xO ./usr/share/hello-apt/word`

// javaClient makes the client of Java, and the file with the authority that it trusts.
const javaClient = `cat > Client.java <<'end'
public class Client {
	public static void main(String[] args) throws Exception {
		try (var in = new java.net.URL(args[0]).openStream()) { in.transferTo(System.out); }
	}
}
end
javac Client.java && keytool -importcert -noprompt -keystore trusted.p12 -storepass password -file ` + trustedInside + ` 2>&1`

// goRoot is the directory of the Go that runs the tests.
func goRoot(t *testing.T) string {
	t.Helper()
	got := run(t, exec.Command("go", "env", "GOROOT"))
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	return strings.TrimSpace(got.stdout)
}

// clientOf is the client with the name.
func clientOf(t *testing.T, name string) proxiedClient {
	t.Helper()
	i := slices.IndexFunc(proxiedClients, func(c proxiedClient) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no client %q", name)
	}
	return proxiedClients[i]
}

// missing says why a client cannot run.
func (c proxiedClient) missing() string {
	if c.program == "postgres" {
		if postgresPrograms() == "" {
			return "postgres is not installed"
		}
		return ""
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
		if c.program == "go" || exists(filepath.Join(dir, c.program)) {
			return ""
		}
	}
	return c.program + " is not on PATH"
}

// noProxy takes the settings of a proxy away from a client.
const noProxy = "unset http_proxy https_proxy no_proxy all_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY"

// run runs the client in box after another script.
func (c proxiedClient) run(t *testing.T, w *proxiedWorld, before, host, port string) result {
	t.Helper()
	script := "set -e; cd $(mktemp -d); export NODE_EXTRA_CA_CERTS=" + trustedInside + "\n" + before + "\n" + c.script
	return w.on(t, "exec", "--env", "WWW="+w.www, "--env", "POSTGRES="+postgresPrograms(), "box", "sh", "-c", script, "sh", host, port)
}

// succeeds holds that the client prints its word.
func (c proxiedClient) succeeds(t *testing.T, w *proxiedWorld, when, before string) {
	t.Helper()
	if got := c.run(t, w, before, c.host, c.port); got.code != 0 || strings.TrimSpace(got.stdout) != c.want {
		t.Errorf("%s: %+v", when, got)
	}
}

// fails holds that the client fails at once, with a message. On a busy host one of three tries must be quick. The
// proxy resets the connection of a client that is slow to begin, and then has no message.
func (c proxiedClient) fails(t *testing.T, w *proxiedWorld, before, host, port, message string, success time.Duration) {
	t.Helper()
	var took time.Duration
	for range 3 {
		var got result
		took = timed(func() { got = c.run(t, w, before, host, port) })
		says, isReset := strings.Contains(got.stderr+got.stdout, message), strings.Contains(got.stderr, "reset by peer")
		if got.code == 0 || !says && !isReset {
			t.Errorf("%s port %s: %+v; want %q", host, port, got, message)
		}
		if says && took <= success+atOnce {
			t.Logf("%s port %s: failed after %v; a success takes %v", host, port, took.Round(time.Millisecond), success.Round(time.Millisecond))
			return
		}
	}
	t.Errorf("%s port %s: failed after %v; a success takes %v; want %q in time", host, port, took, success, message)
}

// Clients that people use work to the names that they were allowed. They fail at once at others, and at other
// ports, with the messages that their users know. Nothing else arrives outside.
func TestClientsWorkOverProxied(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers())
	w := newProxiedWorld(t)
	w.says(t, append(append([]string{"up"}, w.flags(t, clientRules)...), "box")...)
	t.Cleanup(func() { w.on(t, "down", "box") })
	for _, c := range proxiedClients {
		t.Run(c.name, func(t *testing.T) {
			need(t, c.missing())
			if c.prepare != "" {
				w.says(t, "exec", "box", "sh", "-c", c.prepare)
			}
			success := timed(func() { c.succeeds(t, w, "without a setting", noProxy) })
			c.fails(t, w, noProxy, forbiddenName, c.port, c.unknown, success)
			c.fails(t, w, noProxy, c.host, c.otherPort, c.refused, success)
		})
	}
	w.outsideSees(t, clientRules, "dns "+serverName, "tls "+serverName, "http "+serverName)
}
