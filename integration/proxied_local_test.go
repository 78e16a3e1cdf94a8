package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-runtime/sandbox-runtime/internal/testing/testhost"
)

// localRules are for the ports at which servers inside listen, too.
var localRules = []string{serverName, serverName + ":8080", "db.test:5432"}

// localServers are servers inside, each for all addresses of the sandbox: the web with TLS and without, and a
// database.
var localServers = []string{
	`mkdir -p /tmp/web; cd /tmp/web; echo a word of the sandbox > hello; exec python3 -m http.server --bind :: 8080`,
	`mkdir -p /tmp/web; cd /tmp/web; exec python3 -c '
import http.server, ssl
server = http.server.ThreadingHTTPServer(("", 443), http.server.SimpleHTTPRequestHandler)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("/workspace/certificate", "/workspace/certificate.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()'`,
	`$POSTGRES/initdb -D /tmp/data -U visitor -A trust --no-sync -E UTF8 --no-locale && echo host all all all trust >> /tmp/data/pg_hba.conf && exec $POSTGRES/postgres -D /tmp/data \
		-c listen_addresses='*' -c unix_socket_directories= -c fsync=off -c dynamic_shared_memory_type=mmap`,
}

// localClients print the words of the servers inside. They have the settings of a proxy that all commands have.
var localClients = []struct{ script, want string }{
	{"curl -sS http://localhost:8080/hello http://127.0.0.1:8080/hello http://[::1]:8080/hello", strings.Repeat("a word of the sandbox\n", 3)},
	{noProxy + "; curl -sS http://127.0.1.1:8080/hello http://sandbox:8080/hello", strings.Repeat("a word of the sandbox\n", 2)},
	{"curl -sS https://localhost/hello", "a word of the sandbox\n"},
	{`for host in localhost 127.0.0.1 ::1; do $POSTGRES/psql -Atc "select count(*) from pg_stat_ssl where ssl" "host=$host user=visitor dbname=postgres"; done`, "0\n0\n0\n"},
}

// localProxied do so at the addresses that only the proxied network has.
var localProxied = []struct{ script, want string }{
	{noProxy + "; curl -sS http://198.18.0.2:8080/hello http://[fd53::2]:8080/hello", strings.Repeat("a word of the sandbox\n", 2)},
	{noProxy + "; curl -sS --connect-to ::198.18.0.2:443 https://localhost/hello", "a word of the sandbox\n"},
	{`for host in 198.18.0.2 fd53::2; do $POSTGRES/psql -Atc "select count(*) from pg_stat_ssl where ssl" "host=$host user=visitor dbname=postgres"; done`, "0\n0\n"},
}

// localOutside print the words of the servers outside, at the same ports.
var localOutside = []struct{ script, want string }{
	{noProxy + "; curl -sS http://web.test:8080/hello", "hello\n"},
	{noProxy + "; curl -sS https://web.test/hello", "hello\n"},
	{`$POSTGRES/psql -Atc "select count(*) from pg_stat_ssl where ssl" "host=db.test user=visitor dbname=postgres sslmode=verify-full sslrootcert=` + trustedInside + `"`, "1\n"},
}

// Servers inside have all ports, also those of rules. The servers can start before the rules, or after them, and
// they stay when the rules change.
func TestServersInsideWorkBesideRules(t *testing.T) {
	testhost.Long(t)
	need(t, world(), peers(), proxiedClient{program: "postgres"}.missing())
	w := newProxiedWorld(t)
	certificate := w.authority.issue(t, "localhost")
	writeFile(t, filepath.Join(w.workspace, "certificate"), certificatePEM(certificate.Certificate[0]))
	writeFile(t, filepath.Join(w.workspace, "certificate.key"), keyPEM(t, certificate.PrivateKey))
	var allow []string
	for _, r := range localRules {
		allow = append(allow, "--allow", r)
	}
	t.Run("servers before the rules", func(t *testing.T) {
		w.says(t, append(append([]string{"up"}, w.flags(t, nil)...), "box")...)
		defer w.on(t, "down", "box")
		w.startInside(t)
		w.prints(t, "without a network", true, localClients...)
		w.change(t, append([]string{"box", "proxied"}, allow...)...)
		w.prints(t, "with rules", true, slices.Concat(localClients, localProxied, localOutside)...)
		w.change(t, "box", "proxied", "--allow", serverName+":443")
		w.prints(t, "with one rule", true, slices.Concat(localClients, localProxied, localOutside[1:2])...)
		w.prints(t, "without their rules", false, localOutside[0], localOutside[2])
		w.change(t, "box", "none")
		w.prints(t, "after the rules", true, localClients...)
		w.prints(t, "after the rules", false, localOutside...)
	})
	t.Run("servers after the rules", func(t *testing.T) {
		w.says(t, append(append([]string{"up"}, w.flags(t, localRules)...), "box")...)
		defer w.on(t, "down", "box")
		w.startInside(t)
		w.prints(t, "with rules", true, slices.Concat(localClients, localProxied, localOutside)...)
	})
	w.outsideSees(t, localRules, worldServer+" tcp 8080", "tls "+serverName, "dns db.test")
}

// startInside starts the servers of box.
func (w *proxiedWorld) startInside(t *testing.T) {
	t.Helper()
	for _, script := range localServers {
		w.says(t, "exec", "--detach", "--env", "POSTGRES="+postgresPrograms(), "box", "sh", "-c", script)
	}
	for _, port := range []string{"8080", "443", "5432"} {
		eventually(t, "a server inside listens at port "+port, func() bool {
			return w.on(t, "exec", "box", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/"+port).code == 0
		})
	}
}

// prints holds that scripts in box print their words, or that they fail.
func (w *proxiedWorld) prints(t *testing.T, when string, works bool, scripts ...struct{ script, want string }) {
	t.Helper()
	for _, s := range scripts {
		got := w.on(t, "exec", "--env", "POSTGRES="+postgresPrograms(), "box", "sh", "-c", s.script)
		if works && (got.code != 0 || got.stdout != s.want) || !works && (got.code == 0 || got.stdout != "") {
			t.Errorf("%s: %s: %+v", when, s.script, got)
		}
	}
}
